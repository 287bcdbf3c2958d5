"""Workers for tests of masters: real ones as processes, and fakes that have only documented routes or that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nodes.served import free_port

START_S = 60.0


class WorkerProcess:
    """A worker's file as a process, on a free port.

    Parameters
    ----------
    root : folder of the file and of ``chimera_train_data``.
    expression : expression that returns the worker.
    """

    def __init__(self, root: Path, name: str, expression: str) -> None:
        file = root / f"{name}.py"
        lines = ["from chimera.nodes.workers import *", f"worker = {expression}"]
        lines += ["from chimera.web.app import serve", "import os", "port = int(os.environ['TEST_PORT'])"]
        lines += ["serve(worker.app(), host='127.0.0.1', port=port, settings=worker.settings)"]
        file.write_text("\n".join(lines) + "\n")
        self.port = free_port()
        given = {"CHIMERA_TRAIN_DATA": str(root / "chimera_train_data"), "TEST_PORT": str(self.port)}
        folder = root / f"cwd-{name}"
        folder.mkdir()
        given |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
        self._command, self._folder, self._environment = [sys.executable, str(file)], folder, os.environ | given
        self.start()

    def start(self) -> None:
        """Start the process; also again after its end."""
        self.process = subprocess.Popen(
            self._command, cwd=self._folder, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def await_health(self) -> None:
        """Wait until it listens."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except ConnectionRefusedError:
                assert self.process.poll() is None, "the worker did not start"
                assert time.monotonic() < deadline_s, "the worker did not start in time"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def workers(root: Path, **expressions: str) -> Iterator[dict[str, WorkerProcess]]:
    """Run workers, given as an expression for each name."""
    started: dict[str, WorkerProcess] = {}
    try:
        for name, expression in expressions.items():
            started[name] = WorkerProcess(root, name, expression)
        for worker in started.values():
            worker.await_health()
        yield started
    finally:
        for worker in started.values():
            worker.kill()


Behaviour = Callable[[BaseHTTPRequestHandler, dict[str, Any]], Any]
"""A function of a request and its JSON body that returns the JSON body of the answer, or None if it has answered itself."""


@contextlib.contextmanager
def foreign_worker(routes: dict[tuple[str, str], Behaviour]) -> Iterator[int]:
    """Run a worker without Chimera that has these documented routes, in JSON and HTTP/1.0; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            behaviour = routes.get((self.command, self.path))
            length = int(self.headers.get("Content-Length", 0))
            text = self.rfile.read(length)
            if behaviour is None:
                self.send_error(404)
                return
            with contextlib.suppress(ConnectionError):
                body = behaviour(self, json.loads(text) if text else {})
                if body is not None:
                    self.answer(200, json.dumps(body).encode())

        def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = handle_any  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def linear_worker(columns: list[str], rows: NDArray[Any], targets: NDArray[Any]) -> dict[tuple[str, str], Behaviour]:
    """Return the documented routes of a linear regression, with Python lists."""

    def sample(_: Any, __: Any) -> Any:
        return {
            "X_train_sample_columns": columns,
            "X_train_sample_rows": rows[:3].tolist(),
            "y_train_sample_columns": ["target"],
            "y_train_sample_rows": [[value] for value in targets[:3].tolist()],
        }

    def step(_: Any, body: dict[str, Any]) -> Any:
        residual = rows @ np.ravel(body["weights"]) + np.ravel(body["bias"])[0] - targets
        return {"weights_gradients": (residual @ rows / len(rows)).tolist(), "bias_gradient": [float(residual.mean())]}

    return {("GET", "/v1/chimera/sgd/request-data-sample"): sample, ("POST", "/v1/chimera/sgd/fit-step"): step}
