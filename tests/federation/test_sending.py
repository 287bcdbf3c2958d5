"""Calls and frames that are sent together, and a proxy that does not answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("websockets")

from websockets.protocol import State

from chimera.engines.federation.calls import Call
from chimera.engines.federation.tunnel import Tunnel
from chimera.engines.federation.wire.dialing import Dialler
from chimera.engines.federation.wire.port import Port

FRAMES = [bytes([number]) * 30_000 for number in range(5)]


class Connection:
    """A connection that notes the frames of each write."""

    state = State.OPEN

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.queued: list[bytes] = []
        self._frames: list[bytes] = []
        self.protocol = SimpleNamespace(send_binary=self._frames.append, data_to_send=self._taken)
        self.transport = SimpleNamespace(
            get_extra_info=lambda _: None, get_write_buffer_size=lambda: 0, writelines=self.writes.append
        )

    def _taken(self) -> list[bytes]:
        taken, self._frames[:] = self._frames[:], []
        return taken

    async def send(self, frame: bytes) -> None:
        self.queued.append(frame)


def test_frames_of_a_block_leave_together_and_in_order() -> None:
    async def run() -> Connection:
        connection = Connection()
        port = Port(connection, 1.0)
        with port.together():
            for frame in FRAMES:
                port.post(frame)
            assert not connection.writes
        port.post(b"last")
        writing = asyncio.create_task(port.write())
        await asyncio.sleep(0)
        writing.cancel()
        return connection

    connection = asyncio.run(run())
    (first,) = connection.writes  # the frames up to 64 KiB; the rest waits
    assert first == FRAMES[:3]
    assert connection.queued == [*FRAMES[3:], b"last"]


class Loop:
    """An event loop that counts its callbacks, and is interrupted at the first."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self._interrupts = 1

    def call_soon_threadsafe(self, callback: Any) -> None:
        if self._interrupts:
            self._interrupts = 0
            raise KeyboardInterrupt
        self.callbacks.append(callback)


def test_calls_after_an_interrupted_call_start_together() -> None:
    tunnel, started = object.__new__(Tunnel), list[Any]()
    loop = Loop()
    vars(tunnel).update(
        _starting=threading.Lock(), _new=[], _loop=loop, _calls=SimpleNamespace(start=started.append), _refused=None
    )
    first, second, third = (Call("node-0", "POST", "/", "", b"") for _ in range(3))
    with pytest.raises(KeyboardInterrupt):
        tunnel.start(first)
    tunnel.start(second)
    tunnel.start(third)
    (callback,) = loop.callbacks
    callback()
    assert started == [[second, third]]


def test_the_connection_to_a_proxy_that_does_not_answer_is_closed_in_time() -> None:
    dialler = object.__new__(Dialler)
    dialler._hub = "hub.example.org:443"
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        reached = socket.create_connection(proxy.getsockname())
        reached.setblocking(False)
        with pytest.raises(TimeoutError):
            asyncio.run(dialler._through(reached, f"http://127.0.0.1:{proxy.getsockname()[1]}", 0.1))
        assert reached.fileno() == -1
