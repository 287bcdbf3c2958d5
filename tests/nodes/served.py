"""Data, apps and servers for tests of nodes: requests to apps in this process, or servers on a free port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
from fastapi import FastAPI
from numpy.typing import ArrayLike

from chimera.nodes.settings import Settings, read_settings
from chimera.web.app import serve

LIMIT_S = 30.0


def write_data(folder: Path, inputs: ArrayLike, targets: ArrayLike, columns: list[str] | None = None) -> Path:
    """Write the two files of a worker's data, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.asarray(inputs)
    pd.DataFrame(rows, columns=columns or [f"x{i}" for i in range(rows.shape[1])]).to_csv(
        folder / "X_train.csv", index=False
    )
    values = np.asarray(targets)
    pd.DataFrame(values, columns=["y"] if values.ndim == 1 else None).to_csv(folder / "y_train.csv", index=False)
    return folder


def settings(folder: Path, name: str = "tree1", **given: Any) -> Settings:
    """Return the settings of the worker ``name`` with data in ``folder / name``."""
    return read_settings(train_data=folder, worker_name=name, workers_host="127.0.0.1", workers_port=0, **given)


def ask(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """Send a request to an app without a server, and return the answer."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **options)

    return asyncio.run(request())


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Check the form of an error answer, and return its status, exception class and message."""
    body = answer.json()
    assert set(body) == {"message", "details"}
    assert set(body["details"]) == {"errorCode", "errorMessage"}
    assert body["details"]["errorCode"] == answer.status_code >= 400
    assert "\n" not in body["message"]
    assert "Traceback" not in answer.text
    return answer.status_code, body["details"]["errorMessage"], body["message"]


@contextmanager
def serving(app: FastAPI, of: Settings, **more: Any) -> Iterator[str]:
    """Serve an app from a thread of this process, with further arguments of `serve`; yield its address."""
    started = threading.Event()
    options = {"host": "127.0.0.1", "port": 0, "settings": of, "on_started": started.set, **more}
    thread = threading.Thread(target=serve, args=(app,), kwargs=options)
    thread.start()
    try:
        assert started.wait(LIMIT_S)
        yield f"{'https' if of.tls_cert else 'http'}://127.0.0.1:{app.state.address[1]}"
    finally:
        app.state.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Let each start of a thread in the block fail: its stack would need more memory than there is."""
    before = threading.stack_size(1 << 48)
    try:
        yield
    finally:
        threading.stack_size(before)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Process:
    """A worker's file, run in its own Python process."""

    def __init__(self, file: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        own = {"CHIMERA_WORKERS_HOST": "127.0.0.1", "CHIMERA_WORKERS_PORT": str(self.port), **environment}
        self.process = subprocess.Popen(
            [sys.executable, str(file)], cwd=folder, env=os.environ | own, stderr=subprocess.PIPE, text=True
        )

    def wait_healthy(self) -> dict[str, Any]:
        """Wait for the health check, and return its answer."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                return dict(httpx.get(f"{self.url}/health", timeout=LIMIT_S).json())
            except httpx.TransportError:
                assert self.process.poll() is None, self.process.communicate()[1]
                assert time.monotonic() < deadline, "the worker did not start in time"
                threading.Event().wait(0.02)

    def ended(self) -> tuple[int, str]:
        """Wait for its end, and return the exit code and stderr."""
        _, written = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, written


@contextmanager
def worker_process(file: Path, folder: Path, **environment: str) -> Iterator[Process]:
    """Run a worker's file until the block ends."""
    running = Process(file, folder, environment)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(timeout=LIMIT_S)
        if running.process.stderr is not None:
            running.process.stderr.close()
