"""A worker as a process: ``python -m chimera.inference.worker.process --cluster DIR --name w0``.

It listens on the loopback address only, requires the cluster's token, and exits with the process that started it.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from chimera.core.errors import ChimeraError
from chimera.core.private import UMASK
from chimera.engines.parent_watch import exit_with_parent
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.console import warn
from chimera.inference.membership import HEARTBEAT_S, Members
from chimera.inference.preload import awaited
from chimera.inference.remote_workers.models import ForeignModels
from chimera.inference.worker.fork_client import ForkClient
from chimera.inference.worker.protocol import WorkerState
from chimera.inference.worker.worker import KEEP_MODELS, InferenceWorker

LEAVE = signal.SIGUSR1
"""The signal after which a worker computes its batches to their end, and exits."""
DIED = 3
"""Exit code of a worker that can start no computing process."""


def main() -> None:
    """Serve until SIGTERM."""
    exit_with_parent()
    os.umask(UMASK)
    parser = argparse.ArgumentParser(prog="worker_process")
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--preload", default="", help="modules to import before it joins, separated by commas")
    parser.add_argument("--keep-models", type=int, default=KEEP_MODELS)
    parser.add_argument("--forks", type=int, help="descriptor of the socket to the fork server; default: start one")
    parser.add_argument("--remote", action="store_true", help="the cluster is on another machine")
    parser.add_argument("--code", action="store_true", help="with --remote: load models that run code of their own")
    parser.add_argument("--fetched", type=Path, help="with --remote: fetch missing folders of models into this one")
    options = parser.parse_args()
    models = ForeignModels(options.name, code=options.code, cache=options.fetched) if options.remote else None
    try:
        _serve(
            ClusterFolder(options.cluster), options.name, options.preload, options.keep_models, options.forks, models
        )
    except ChimeraError as error:
        sys.stderr.write(f"chimera: error: {options.name}: {error}\n")
        raise SystemExit(1) from None


def _serve(
    folder: ClusterFolder, name: str, preload: str, keep_models: int, forks: int | None, models: ForeignModels | None
) -> None:
    from chimera.inference.worker.routes import create_worker_app
    from chimera.web.app import serve

    access = folder.access()
    where = Path.cwd()
    os.chdir(folder.logs(name))  # the logs are written there
    worker = InferenceWorker(
        name, on_exit=_end, keep_models=keep_models, preload=awaited(preload), folder=where, forks=ForkClient(forks),
        models=models,
    )  # fmt: skip
    if worker.without:
        warn(f"{name} on {socket.gethostname()} runs without modules of --preload: {worker.without}")
    members, left = Members(folder.members), threading.Event()
    leaving = threading.Event()
    signal.signal(LEAVE, lambda *_: leaving.set())

    def beat() -> None:
        while not left.wait(HEARTBEAT_S):
            members.beat(name, state=_word(worker.state()), epoch=worker.epoch)

    def join() -> None:
        host, port = app.state.address
        members.join("worker", name, f"http://{host}:{port}", state=_word(worker.state()))
        threading.Thread(target=beat, name="chimera-beat", daemon=True).start()

    def leave() -> None:
        leaving.wait()
        worker.leave()
        app.state.stop()

    app = create_worker_app(worker, access, lambda: app.state.stop())
    threading.Thread(target=leave, name="chimera-leave", daemon=True).start()
    try:
        serve(app, host="127.0.0.1", port=0, settings=access, on_started=join)
    finally:
        left.set()
        members.leave(name)
        worker.close()


def _word(state: WorkerState) -> str:
    return "loading" if state.loading else "busy" if state.computing else "free"


def _end(reason: str) -> None:
    """Exit at once without cleanup: the coordinator sees the connection break, and counts the worker as dead."""
    sys.stderr.write(f"chimera: error: {reason}\n")
    sys.stderr.flush()
    os._exit(DIED)


if __name__ == "__main__":
    main()
