"""The calls of drivers at a node: received in chunks, run once, and answered as often as their drivers ask."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chimera.core.errors import ActorLost, ChimeraError, ConfigurationError, ConflictError, UnavailableError
from chimera.engines.federation.wire.frames import Answer, Ask, Done, Header, More, Present, Took, Waits, pack
from chimera.engines.federation.wire.port import Port
from chimera.engines.federation.wire.streams import Receiving, Sending
from chimera.engines.http.hosting.hosted_actor import Reply, error_reply
from chimera.federation.node.store import DONE, SETTLED, Kept, Store

_MOST_OPEN, _MOST_OPEN_BYTES = 256, 1 << 31  # of one requester, so that it cannot block others
_FORGET_S = 600.0  # a body whose driver does not come back is dropped after this time
_INLINE = 1 << 16  # bytes; a body of this size is run without another thread

Key = tuple[str, int]
Finished = Callable[[Kept], None]
"""Receives the answer of a call, in any thread."""
Run = Callable[[Ask, bytes | bytearray, Finished], None]
"""Runs a call."""


class _Open:
    """A call whose body is not complete."""

    __slots__ = ("ask", "body", "since_s")

    def __init__(self, ask: Ask, since_s: float) -> None:
        self.ask, self.body, self.since_s = ask, Receiving(ask.size), since_s


class _Leaving:
    """An answer of which the driver has not confirmed all chunks."""

    __slots__ = ("_file", "ask", "kept", "sending")

    def __init__(self, ask: Ask, kept: Kept) -> None:
        self.ask, self.kept = ask, kept
        self.sending = Sending(kept.size, min(ask.have, kept.size))
        self._file = os.open(kept.body, os.O_RDONLY) if isinstance(kept.body, Path) else None

    def frame(self, begin: int, end: int) -> bytes:
        """Return the frame of a part of the answer."""
        ask, kept = self.ask, self.kept
        if self._file is not None:
            part: bytes | memoryview = os.pread(self._file, end - begin, begin)
        else:
            part = memoryview(kept.body)[begin:end] if isinstance(kept.body, bytes) else b""
        return pack(Answer(ask.run, ask.number, ask.node, kept.status, kept.type, kept.size, begin), part)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Calls:
    """The calls of one node. It is the `Peer` of the node's link; its methods run in the thread of the event loop.

    Parameters
    ----------
    store : the answers of the node.
    run : runs a call that must be run once; it keeps the answer in the store.
    """

    def __init__(self, store: Store, run: Run) -> None:
        self._store, self._run = store, run
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="chimera-calls")
        self._open: dict[Key, _Open] = {}
        self._running: dict[Key, Ask] = {}
        self._leaving: dict[Key, _Leaving] = {}
        self._port: Port | None = None

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._open or self._running or self._leaving)

    def hold(self, ask: Ask, asked: int, why: str = "", wait_s: int = 0) -> bool:
        """Report that a call waits, see `Waits`; return whether the driver still waits for the answer."""
        if (ask.run, ask.number) not in self._running:
            return False
        if self._port is not None:
            self._port.post(pack(Waits(ask.run, ask.number, ask.node, asked, why, wait_s)))
        return True

    def joined(self, port: Port, present: Present) -> None:  # noqa: ARG002 - a node learns of no others
        """Note that the connection is open: drivers will ask again."""
        self._port = port

    def parted(self) -> None:
        """Note that the connection is closed."""
        self._port = None
        for leaving in self._leaving.values():
            leaving.close()
        self._leaving.clear()

    def close(self) -> None:
        """End the threads."""
        self.parted()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def received(self, header: Header, payload: memoryview) -> None:
        """Handle a frame of a driver."""
        try:
            if isinstance(header, Ask):
                self._asked(header, payload)
            elif isinstance(header, More):
                self._take((header.run, header.number), header.at, payload)
            elif isinstance(header, Took):
                leaving = self._leaving.get((header.run, header.number))
                if leaving is not None:
                    leaving.sending.took(header.at)
                    self._send(leaving)
            elif isinstance(header, Done):
                self._settle(header.run, header.floor, header.settled)
        except ChimeraError as error:  # the store cannot be written: the call is not run
            if isinstance(header, Ask):
                self._refuse(header, error_reply(503, error))

    def _asked(self, ask: Ask, payload: memoryview) -> None:
        key = ask.run, ask.number
        if not self._store.owns(ask.run, ask.requester, ask.fingerprint):
            self._refuse(ask, error_reply(403, ConfigurationError("this run belongs to another driver")))
            return
        if key in self._running:
            self._running[key] = ask  # it says which part of the answer the driver has
        elif key in self._open:
            self._open[key].ask = ask
            self._confirm(self._open[key])
        elif ask.verb == "POST" and (kept := self._store.find(*key)) is not None:
            self._again(ask, kept)
        elif why := self._no_room(ask):
            self._refuse(ask, error_reply(503, UnavailableError(why)))
        else:
            opened = self._open[key] = _Open(ask, self._loop.time())
            if len(payload) or not ask.size:
                self._take(key, 0, payload)
            else:
                self._confirm(opened)

    def _again(self, ask: Ask, kept: Kept) -> None:
        """Answer a call that was started before."""
        if kept.state == DONE:
            self._leave(ask, kept)
        elif kept.state == SETTLED:
            self._refuse(ask, error_reply(409, ConflictError("this call was answered, and its answer was confirmed")))
        else:
            gone = "the process of the node that ran this call has ended"
            self._refuse(ask, error_reply(404, ActorLost(gone)))

    def _no_room(self, ask: Ask) -> str:
        before_s = self._loop.time() - _FORGET_S
        for key in [key for key, each in self._open.items() if each.since_s < before_s]:
            del self._open[key]
        own = [each.body.size for each in self._open.values() if each.ask.requester == ask.requester]
        if sum(own) + ask.size > _MOST_OPEN_BYTES or len(own) >= _MOST_OPEN:
            return "too many or too large calls arrive at this node: ask again later"
        return ""

    def _take(self, key: Key, at: int, chunk: memoryview) -> None:
        """Add a chunk to a body, and run the call when the body is complete."""
        opened = self._open.get(key)
        if opened is None or not opened.body.take(at, chunk):
            return
        if not opened.body.complete:
            self._confirm(opened)
            return
        del self._open[key]
        self._running[key] = opened.ask
        self.start(opened.ask, opened.body.body())

    def start(self, ask: Ask, body: bytes | bytearray) -> None:
        """Run a call whose body is complete."""
        if len(body) > _INLINE:  # it takes time to read
            self._threads.submit(self._start, ask, body)
        else:
            self._start(ask, body)

    def _start(self, ask: Ask, body: bytes | bytearray) -> None:
        def finished(kept: Kept) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._finished, (ask.run, ask.number), kept)

        try:
            self._run(ask, body, finished)
        except Exception as error:  # without an answer, the driver would wait
            finished(Kept.of(error_reply(500, error)))

    def _finished(self, key: Key, kept: Kept) -> None:
        ask = self._running.pop(key, None)
        if ask is not None and kept.state == DONE:
            self._leave(ask, kept)

    def _confirm(self, opened: _Open) -> None:
        ask = opened.ask
        if self._port is not None:
            self._port.post(pack(Took(ask.run, ask.number, ask.node, opened.body.got)))

    def _refuse(self, ask: Ask, reply: Reply) -> None:
        self._leave(ask, Kept.of(reply))

    def _leave(self, ask: Ask, kept: Kept) -> None:
        """Send an answer, from the byte that the driver requested."""
        if self._port is None:
            return
        key = ask.run, ask.number
        if (before := self._leaving.pop(key, None)) is not None:
            before.close()
        try:
            leaving = _Leaving(ask, kept)
        except FileNotFoundError:  # the answer was confirmed meanwhile
            return
        if not kept.size:
            self._port.post(leaving.frame(0, 0))
        self._send(leaving)
        if kept.size - ask.have > _INLINE:
            self._leaving[key] = leaving
        else:
            leaving.close()

    def _send(self, leaving: _Leaving) -> None:
        if self._port is not None:
            for begin, end in leaving.sending.due():
                self._port.post(leaving.frame(begin, end))

    def _settle(self, run: str, floor: int, numbers: list[int]) -> None:
        gone = set(numbers)
        asks = self._running | {
            key: each.ask for each_of in (self._open, self._leaving) for key, each in each_of.items()
        }
        for key, ask in asks.items():
            if key[0] == run and (key[1] in gone or (key[1] < floor and ask.verb == "POST")):
                self._open.pop(key, None)
                self._running.pop(key, None)
                if (leaving := self._leaving.pop(key, None)) is not None:
                    leaving.close()
        self._store.settle(run, floor, numbers)
