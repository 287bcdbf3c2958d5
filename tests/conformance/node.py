"""A node that hosts the actors of the kit, as a separate process.

Usage: ``python -m conformance.node``; it prints its port when it listens.
"""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
from pathlib import Path

import conformance.actors


class NodeProcess:
    """A running node."""

    def __init__(self, *arguments: str) -> None:
        paths = [str(Path(__file__).parents[1]), *sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "conformance.node", *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._url = ""

    def url(self) -> str:
        """Return its URL, once it listens."""
        if not self._url:
            assert self.process.stdout is not None
            port = self.process.stdout.readline().strip()
            assert port, "the node did not start"
            self._url = f"http://127.0.0.1:{port}"
        return self._url

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def start_node(*arguments: str) -> NodeProcess:
    """Start a node; `NodeProcess.url` waits for it."""
    return NodeProcess(*arguments)


def main(port: int = 0) -> None:
    """Serve on a free port, or on this one."""
    import uvicorn
    from fastapi import FastAPI

    from chimera.engines.http.hosting.host import Host
    from chimera.nodes.actors import actors_router

    classes = [kind for _, kind in inspect.getmembers(conformance.actors, inspect.isclass)]
    own = [kind for kind in classes if kind.__module__ == conformance.actors.__name__]
    host = Host({f"{kind.__module__}.{kind.__qualname__}": kind for kind in own}, forget_after_s=5.0)
    app = FastAPI()
    app.include_router(actors_router(host))
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(listener.getsockname()[1], flush=True)  # noqa: T201 - the test reads this
        config = uvicorn.Config(app, http="httptools", log_level="error", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
