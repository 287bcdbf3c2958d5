"""The process of a cluster's daemon: its HTTP server, and its end with the supervisor."""

from __future__ import annotations

import os
import socket
import threading

from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.daemon.daemon import Daemon
from chimera.jobs.scheduling.messages import Limits


def run(folder: ClusterFolder, options: Options, web: socket.socket, workers: socket.socket, parent_pipe: int) -> None:
    """Run the daemon of a cluster until SIGTERM or the end of the cluster.

    Parameters
    ----------
    web : listening socket for HTTP requests.
    workers : listening socket for workers.
    parent_pipe : descriptor that becomes readable when the supervisor exits; then the daemon exits, too.
    """
    from chimera.jobs.daemon.app import (
        create_jobs_app,  # imported late: it loads FastAPI, which the supervisor does not need
    )
    from chimera.web.app import serve

    threading.Thread(target=_exit_with_parent, args=(parent_pipe,), name="chimera parent watch", daemon=True).start()
    limits = Limits(resend_s=3600.0)  # a connection loses no message while it lasts, and an attempt ends with it
    daemon = Daemon(folder, options, workers, limits)
    app, access = create_jobs_app(daemon)
    serve(app, host=options.host, port=options.port, settings=access, on_started=daemon.start_threads, listener=web)


def _exit_with_parent(parent_pipe: int) -> None:
    os.read(parent_pipe, 1)
    os._exit(1)
