"""Parts of a federation as processes, which tests can kill, and a proxy that cuts connections.

Usage: ``python -m federation.processes FOLDER LOG`` runs a node that hosts `Summer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from federation.federation_kit import LIMIT_S, AllowAll, Running

CHUNK = 1 << 16


class Summer:
    """An actor whose results depend on all its former calls. It logs each call that it runs."""

    hosted, brief = True, frozenset({"step"})
    log: Path

    def __init__(self, seed: int, token: str) -> None:
        self._state = np.random.default_rng(seed).normal(size=4)
        self._note(token)

    def step(self, vector: Any, token: str) -> Any:
        self._note(token)
        self._state = 0.5 * self._state + 0.1 * vector[:4] + 1.0
        return 0.5 * vector + np.tile(self._state, len(vector) // 4)

    def die(self, token: str) -> None:
        """End the process in the middle of a call."""
        self._note(token)
        os.kill(os.getpid(), 9)

    def _note(self, token: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{token}\n")


class Carried(Summer):
    """A `Summer` whose state its driver holds as well, so that it can be made again where its process was killed."""

    def __init__(self, state: Any, token: str) -> None:
        self._state = np.asarray(state)
        self._note(token)

    def step(self, vector: Any, token: str) -> Any:
        """Return the result, with the new state before it."""
        result = super().step(vector, token)
        return np.concatenate([self._state, result])


def summer(log: Path) -> dict[str, Any]:
    """Return the classes of a node that logs the calls of its actors."""
    return {
        f"federation.processes.{kind.__name__}": type("Logging", (kind,), {"log": log}) for kind in (Summer, Carried)
    }


class Process:
    """A hub or node as a process."""

    def __init__(self, *command: Any) -> None:
        paths = [str(Path(__file__).parents[1]), *sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def line(self) -> str:
        """Wait for a line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def hub_process(folder: Path, port: int = 0) -> tuple[Process, str]:
    """Start a hub; return it and its address once it listens."""
    process = Process("chimera", "hub", "up", "--folder", folder, "--port", port)
    return process, process.line().split()[4].rstrip(";")


def node_process(folder: Path, log: Path) -> Process:
    """Start a node that hosts `Summer`, and wait until it is connected."""
    process = Process("federation.processes", folder, log)
    assert process.line().startswith("connected")
    return process


class Cutter:
    """A proxy that cuts each connection after a random number of bytes, until it has cut enough.

    Attributes
    ----------
    cuts : connections cut so far.
    """

    def __init__(self, url: str, seed: int, max_cuts: int, max_bytes: int) -> None:
        self._to = int(url.rpartition(":")[2])
        self._random, self._max_cuts, self._max_bytes = Random(seed), max_cuts, max_bytes
        self.cuts = 0
        self._listening = threading.Event()
        self._running = Running(self._serve)
        assert self._listening.wait(LIMIT_S)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: Any, writer: Any) -> None:
        left = [self._random.randrange(self._max_bytes)]
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        both = [self._copy(reader, to_writer, left), self._copy(to_reader, writer, left)]
        tasks = [asyncio.ensure_future(one) for one in both]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.transport.abort()
            to_writer.transport.abort()

    async def _copy(self, reader: Any, writer: Any, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.cuts < self._max_cuts and len(data) > left[0]:
                    self.cuts += 1
                    writer.write(data[: left[0]])
                    return
                left[0] -= len(data)
                writer.write(data)
                await writer.drain()

    def stop(self) -> None:
        self._running.stop()


def main(folder: str, log: str) -> None:
    from chimera.engines.federation.credentials import Credentials
    from chimera.federation.node.service import Service, serve

    credentials = Credentials.read(Path(folder), "node")

    def joined() -> None:
        with contextlib.suppress(BrokenPipeError):
            print("connected", flush=True)  # noqa: T201 - the test reads this

    serve(Service(credentials, summer(Path(log)), AllowAll(), joined))


if __name__ == "__main__":
    main(*sys.argv[1:])
