"""The calls of drivers at a node: received in chunks, run once, and answered as often as their drivers ask."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chimera.core.errors import ActorLost, ChimeraError, ConfigurationError, ConflictError, UnavailableError
from chimera.engines.federation.wire.frames import (
    Acknowledged,
    Answer,
    BodyChunk,
    CallPending,
    CallRequest,
    ConnectedNodes,
    Done,
    Header,
    pack,
)
from chimera.engines.federation.wire.port import Port
from chimera.engines.federation.wire.streams import Receiving, Sending
from chimera.engines.http.hosting.hosted_actor import Reply, error_reply
from chimera.federation.node.store import DONE, SETTLED, Kept, Store

_MAX_OPEN, _MAX_OPEN_BYTES = 256, 1 << 31  # of one requester, so that it cannot block others
_FORGET_S = 600.0  # a body whose driver does not come back is dropped after this time
_INLINE = 1 << 16  # bytes; a body of this size is run without another thread

Key = tuple[str, int]
Finished = Callable[[Kept], None]
"""Receives the answer of a call, in any thread."""
Run = Callable[[CallRequest, bytes | bytearray, Finished], None]
"""Runs a call."""


class _Open:
    """A call whose body is not complete."""

    __slots__ = ("body", "request", "since_s")

    def __init__(self, request: CallRequest, since_s: float) -> None:
        self.request, self.body, self.since_s = request, Receiving(request.size), since_s


class _Leaving:
    """An answer of which the driver has not confirmed all chunks."""

    __slots__ = ("_file", "kept", "request", "sending")

    def __init__(self, request: CallRequest, kept: Kept) -> None:
        self.request, self.kept = request, kept
        self.sending = Sending(kept.size, min(request.have, kept.size))
        self._file = os.open(kept.body, os.O_RDONLY) if isinstance(kept.body, Path) else None

    def frame(self, begin: int, end: int) -> bytes:
        """Return the frame of a part of the answer."""
        request, kept = self.request, self.kept
        if self._file is not None:
            part: bytes | memoryview = os.pread(self._file, end - begin, begin)
        else:
            part = memoryview(kept.body)[begin:end] if isinstance(kept.body, bytes) else b""
        return pack(Answer(request.run, request.number, request.node, kept.status, kept.type, kept.size, begin), part)

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
        self._unread: list[CallRequest] = []  # calls whose bodies wait for a thread; a driver may use a number again
        self._running: dict[Key, CallRequest] = {}
        self._leaving: dict[Key, _Leaving] = {}
        self._port: Port | None = None

    @property
    def busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._open or self._running or self._leaving)

    def hold(self, request: CallRequest, asked: int, reason: str = "", wait_s: int = 0) -> bool:
        """Report that a call waits, see `CallPending`; return whether the driver still waits for the answer."""
        if (request.run, request.number) not in self._running:
            return False
        if self._port is not None:
            self._port.post(pack(CallPending(request.run, request.number, request.node, asked, reason, wait_s)))
        return True

    def joined(self, port: Port, present: ConnectedNodes) -> None:  # noqa: ARG002 - a node gets no list of others
        """Note that the connection is open: drivers will repeat their requests."""
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
            if isinstance(header, CallRequest):
                self._asked(header, payload)
            elif isinstance(header, BodyChunk):
                self._take((header.run, header.number), header.at, payload)
            elif isinstance(header, Acknowledged):
                leaving = self._leaving.get((header.run, header.number))
                if leaving is not None:
                    leaving.sending.took(header.at)
                    self._send(leaving)
            elif isinstance(header, Done):
                self._settle(header.run, header.floor, header.settled)
        except ChimeraError as error:  # the store cannot be written: the call is not run
            if isinstance(header, CallRequest):
                self._refuse(header, error_reply(503, error))

    def _asked(self, request: CallRequest, payload: memoryview) -> None:
        key = request.run, request.number
        if not self._store.owns(request.run, request.requester, request.fingerprint):
            self._refuse(request, error_reply(403, ConfigurationError("this run belongs to another driver")))
            return
        if key in self._running:
            self._running[key] = request  # it states which part of the answer the driver has
        elif key in self._open:
            self._open[key].request = request
            self._confirm(self._open[key])
        elif request.verb == "POST" and (kept := self._store.find(*key)) is not None:
            self._again(request, kept)
        elif reason := self._overload(request):
            self._refuse(request, error_reply(503, UnavailableError(reason)))
        else:
            opened = self._open[key] = _Open(request, self._loop.time())
            if len(payload) or not request.size:
                self._take(key, 0, payload)
            else:
                self._confirm(opened)

    def _again(self, request: CallRequest, kept: Kept) -> None:
        """Answer a call that was started before."""
        if kept.state == DONE:
            self._leave(request, kept)
        elif kept.state == SETTLED:
            self._refuse(
                request, error_reply(409, ConflictError("this call was answered, and its answer was confirmed"))
            )
        else:
            gone = "the process of the node that ran this call has ended"
            self._refuse(request, error_reply(404, ActorLost(gone)))

    def _overload(self, request: CallRequest) -> str:
        before_s = self._loop.time() - _FORGET_S
        for key in [key for key, each in self._open.items() if each.since_s < before_s]:
            del self._open[key]
        requests = (*(each.request for each in self._open.values()), *self._unread)
        own = [each.size for each in requests if each.requester == request.requester]
        if sum(own) + request.size > _MAX_OPEN_BYTES or len(own) >= _MAX_OPEN:
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
        self._running[key] = opened.request
        self.start(opened.request, opened.body.body())

    def start(self, request: CallRequest, body: bytes | bytearray) -> None:
        """Run a call whose body is complete."""
        if len(body) > _INLINE:  # it takes time to read
            self._unread.append(request)
            self._threads.submit(self._read, request, body)
        else:
            self._start(request, body)

    def _read(self, request: CallRequest, body: bytes | bytearray) -> None:
        self._start(request, body)
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._unread.remove, request)

    def _start(self, request: CallRequest, body: bytes | bytearray) -> None:
        def finished(kept: Kept) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._finished, (request.run, request.number), kept)

        try:
            self._run(request, body, finished)
        except Exception as error:  # without an answer, the driver would wait
            finished(Kept.of(error_reply(500, error)))

    def _finished(self, key: Key, kept: Kept) -> None:
        request = self._running.pop(key, None)
        if request is not None and kept.state == DONE:
            self._leave(request, kept)

    def _confirm(self, opened: _Open) -> None:
        request = opened.request
        if self._port is not None:
            self._port.post(pack(Acknowledged(request.run, request.number, request.node, opened.body.got)))

    def _refuse(self, request: CallRequest, reply: Reply) -> None:
        self._leave(request, Kept.of(reply))

    def _leave(self, request: CallRequest, kept: Kept) -> None:
        """Send an answer, from the byte that the driver requested."""
        if self._port is None:
            return
        key = request.run, request.number
        if (before := self._leaving.pop(key, None)) is not None:
            before.close()
        try:
            leaving = _Leaving(request, kept)
        except FileNotFoundError:  # the answer was confirmed meanwhile
            return
        if not kept.size:
            self._port.post(leaving.frame(0, 0))
        self._send(leaving)
        if kept.size - request.have > _INLINE:
            self._leaving[key] = leaving
        else:
            leaving.close()

    def _send(self, leaving: _Leaving) -> None:
        if self._port is not None:
            for begin, end in leaving.sending.due():
                self._port.post(leaving.frame(begin, end))

    def _settle(self, run: str, floor: int, numbers: list[int]) -> None:
        gone = set(numbers)
        requests = self._running | {
            key: each.request for each_of in (self._open, self._leaving) for key, each in each_of.items()
        }
        for key, request in requests.items():
            if key[0] == run and (key[1] in gone or (key[1] < floor and request.verb == "POST")):
                self._open.pop(key, None)
                self._running.pop(key, None)
                if (leaving := self._leaving.pop(key, None)) is not None:
                    leaving.close()
        self._store.settle(run, floor, numbers)
