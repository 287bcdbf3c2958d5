"""The driver's side of a federation: calls of nodes travel through the hub, and are repeated until they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from chimera.core.errors import RunError, TimeLimitError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.frames import (
    CHUNK,
    MOST_SETTLED,
    PROTOCOL,
    REVISION,
    Answer,
    Ask,
    Done,
    Header,
    Hello,
    More,
    Present,
    Progress,
    Took,
    Waits,
    pack,
)
from chimera.engines.federation.wire.link import HubRefusedError, Link, ignore_ends
from chimera.engines.federation.wire.pages import keep_pages
from chimera.engines.federation.wire.port import Port
from chimera.engines.federation.wire.streams import Receiving, Sending
from chimera.engines.http import connection as http
from chimera.version import __version__

_TICK_S = 0.5
_SAYS_S = 10.0  # a node says each second that a call waits for its administrator
_SETTLE_S = 0.2  # answers of this time are confirmed together
_REPORT_S = 1.0  # longest time between the progress of a run and its report to the hub


class _Call:
    """A call without an answer.

    Attributes
    ----------
    once : whether the node must not run it twice.
    answer : the part of the answer that is there.
    waits_s : when its node said last that the call waits for the node's administrator.
    result, failure : the answer, or the exception in its place.
    """

    def __init__(self, node: str, verb: str, path: str, content_type: str, body: bytes) -> None:
        self.node, self.verb, self.path, self.type = node, verb, path, content_type
        self.body = memoryview(body)
        self.number = 0
        self.once = verb == "POST"
        self.asked = False
        self.sending = Sending(len(body))
        self.answer: Receiving | None = None
        self.status = 0
        self.waits_s = -math.inf
        self.ended = threading.Event()
        self.result: http.Answer | None = None
        self.failure: Exception | None = None

    def end(self, result: http.Answer | None, failure: Exception | None = None) -> None:
        """Wake the thread that waits."""
        if not self.ended.is_set():
            self.result, self.failure = result, failure
            self.ended.set()


class Tunnel:
    """The connection of one run to its hub, with a thread of its own.

    Parameters
    ----------
    run : key of the run.
    most_bytes : maximum size of an answer, in bytes.
    away_s : seconds after which a node that is not connected counts as lost.

    Attributes
    ----------
    on_wait : None, or called with a text for what the run waits, in the thread of the tunnel.
    """

    def __init__(self, credentials: Credentials, run: str, *, most_bytes: int, away_s: float) -> None:
        self.run, self._most_bytes, self._away_s = run, most_bytes, away_s
        self._hub = credentials.hub
        self.on_wait: Callable[[str], None] | None = None
        self._waits: set[tuple[str, int]] = set()  # node and number of the runs that wait there
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._open: defaultdict[str, set[int]] = defaultdict(set)  # calls without an answer, by node
        self._settled: defaultdict[str, list[int]] = defaultdict(
            list
        )  # answered calls that the node does not know of yet
        self._settling = False
        self._progress: Progress | None = None
        self._reporting = False
        self._port: Port | None = None
        self._revision = 0  # of the hub
        self._boots: dict[str, str] = {}
        self._gone_s: dict[str, float] = {}
        self._began_s = time.monotonic()
        self._refused: Exception | None = None
        self._changed = threading.Condition()
        self._link = Link(credentials, Hello(PROTOCOL, run, __version__, run, REVISION), self)
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Exception | None] | None = None
        self._thread = threading.Thread(target=self._live, name="chimera-federation", daemon=True)
        keep_pages()
        self._thread.start()

    # Methods for other threads.

    def wait_for(self, enough: Callable[[set[str]], bool], timeout_s: float) -> set[str]:
        """Wait until the connected nodes are enough, or the time is over; return their names.

        Raises
        ------
        RunError : the hub cannot be reached within the time.
        HubRefusedError : the hub does not accept this driver.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._refused or (self._port and enough(set(self._boots))), timeout_s)
            if self._refused is not None:
                raise self._refused
            if self._port is None:
                raise RunError(f"the hub {self._hub} cannot be reached: {self._link.why or 'no answer'}")
            return set(self._boots)

    def start(self, call: _Call) -> None:
        """Send a call, now or when its node is connected.

        Raises
        ------
        Unreachable : the tunnel is closed.
        """
        try:
            self._loop.call_soon_threadsafe(self._start, call)
        except RuntimeError as error:  # the loop was closed
            raise http.Unreachable(str(self._refused)) from error

    def drop(self, call: _Call) -> None:
        """Note that no thread waits for a call any more."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._end, call, None, None)

    def report(self, progress: Progress) -> None:
        """Report the progress of the run to the hub, soon."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._report, progress)

    def absent(self, node: str, since_s: float = 0.0) -> str:
        """Return why a node counts as lost; an empty text if it does not.

        Parameters
        ----------
        since_s : when the caller began to wait for the node, which must be as long ago as the node is away.
        """
        if self._refused is not None:
            return str(self._refused)
        gone_s = max(self._gone_s.get(node, self._began_s), since_s)
        if node in self._boots or time.monotonic() - gone_s < self._away_s:
            return ""
        why = (
            f"the hub {self._hub} cannot be reached: {self._link.why}" if self._port is None else "it is not connected"
        )
        return f"{why} for {self._away_s:g} s"

    def close(self) -> None:
        """Close the connection, and end the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    # Methods of `Peer`, and others in the thread of the loop.

    @property
    def busy(self) -> bool:
        """Whether calls wait for answers."""
        return bool(self._calls)

    def joined(self, port: Port, present: Present) -> None:
        """Repeat the calls without an answer."""
        with self._changed:
            self._port, self._revision = port, present.revision
            self._boots = {}
        self._update(present)
        self._send_progress()

    def parted(self) -> None:
        """Note since when no node can be reached."""
        with self._changed:
            now_s = time.monotonic()
            self._gone_s |= dict.fromkeys(self._boots, now_s)
            self._port, self._boots = None, {}

    def received(self, header: Header, payload: memoryview) -> None:
        """Handle a frame of the hub or of a node."""
        if isinstance(header, Answer):
            self._answered(header, payload)
        elif isinstance(header, Took):
            call = self._calls.get(header.number)
            if call is not None and call.node == header.node:
                call.sending.took(header.at)
                self._send(call)
        elif isinstance(header, Present):
            self._update(header)
        elif isinstance(header, Waits):
            call = self._calls.get(header.number)
            if call is not None and call.node == header.node:
                call.waits_s = time.monotonic()
                self._say_waits(header.node, header.asked)

    def _say_waits(self, node: str, asked: int) -> None:
        if (node, asked) not in self._waits and self.on_wait is not None:
            self._waits.add((node, asked))
            self.on_wait(
                f"the administrator of {node}, who decides about run {asked} there: chimera node approve {asked}"
            )

    def _update(self, present: Present) -> None:
        with self._changed:
            for name in present.gone:
                if self._boots.pop(name, None) is not None:
                    self._gone_s[name] = time.monotonic()
            self._boots |= present.nodes
            self._changed.notify_all()
        for call in list(self._calls.values()):
            if call.node in present.nodes:
                self._ask(call)
        self._tell()

    def _start(self, call: _Call) -> None:
        if call.ended.is_set():
            return
        call.number = next(self._numbers)
        self._calls[call.number] = call
        if call.once:
            self._open[call.node].add(call.number)
        if call.node in self._boots:
            self._ask(call)

    def _ask(self, call: _Call) -> None:
        """Ask for the answer, for the first time or again."""
        if self._port is None:
            return
        size = len(call.body)
        first = call.body[:CHUNK] if not call.asked or size <= CHUNK else call.body[:0]
        have = 0 if call.answer is None else call.answer.got
        header = Ask(self.run, call.number, call.node, call.verb, call.path, call.type, size, have)  # type: ignore[arg-type]
        self._port.post(pack(header, first))
        call.sending = Sending(size)
        call.sending.skip(len(first))
        if not call.asked:
            call.asked = True
            self._send(call)  # later, the node says first which part it has

    def _send(self, call: _Call) -> None:
        if self._port is not None:
            for begin, end in call.sending.due():
                self._port.post(pack(More(self.run, call.number, call.node, begin), call.body[begin:end]))

    def _answered(self, header: Answer, payload: memoryview) -> None:
        call = self._calls.get(header.number)
        if call is None or call.node != header.node:
            self._settle(header.node, header.number)
            return
        if header.size > self._most_bytes:
            text = f"an answer of {header.size} bytes, and {self._most_bytes} are allowed"
            self._end(call, None, http.InvalidAnswer(text))
            return
        got = call.answer
        if got is None or (got.size, call.status) != (header.size, header.status):
            call.answer = None
            if header.at:  # the rest of an answer of a process that has ended
                self._ask(call)
                return
            got, call.status = Receiving(header.size), header.status
            call.answer = got
        if not got.take(header.at, payload):
            return
        if got.complete:
            self._end(call, http.Answer(header.status, header.type, got.body()))
        elif self._port is not None:
            self._port.post(pack(Took(self.run, call.number, call.node, got.got)))

    def _end(self, call: _Call, result: http.Answer | None, failure: Exception | None = None) -> None:
        call.end(result, failure)
        if self._calls.pop(call.number, None) is not None and call.once:
            self._open[call.node].discard(call.number)
            self._settle(call.node, call.number)

    def _settle(self, node: str, number: int) -> None:
        """Tell a node soon that it may forget an answer."""
        self._settled[node].append(number)
        if not self._settling:
            self._settling = True
            self._loop.call_later(_SETTLE_S, self._tell)

    def _tell(self) -> None:
        self._settling = False
        for node in [node for node in self._settled if node in self._boots]:
            numbers = self._settled.pop(node)
            floor = min(self._open[node], default=max(numbers) + 1)
            for place in range(0, len(numbers), MOST_SETTLED):
                if self._port is not None:
                    self._port.post(pack(Done(self.run, node, floor, numbers[place : place + MOST_SETTLED])))

    def _report(self, progress: Progress) -> None:
        self._progress = progress
        if not self._reporting:
            self._reporting = True
            self._loop.call_later(_REPORT_S, self._send_progress)

    def _send_progress(self) -> None:
        self._reporting = False
        if self._progress is not None and self._port is not None and self._revision:
            self._port.post(pack(self._progress))

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(ignore_ends)
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        self._task = asyncio.ensure_future(_ended(self._link.run()))
        error = await self._task
        with self._changed:
            self._refused = error or HubRefusedError("the connection to the hub was closed")
            self._changed.notify_all()
        for call in self._calls.values():
            call.end(None, http.Unreachable(str(self._refused)))

    def _stop(self) -> None:
        self._tell()
        if self._progress is not None:
            self._progress = msgspec.structs.replace(self._progress, ended=True)
            self._send_progress()
        if self._task is not None:
            self._loop.call_later(0.05, self._task.cancel)  # after the last confirmations


async def _ended(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Return the exception that ended this work; None if it was cancelled."""
    try:
        await work
    except asyncio.CancelledError:
        return None
    except Exception as error:
        return error
    return None


def _tick(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    return min(left_s, _TICK_S) if left_s > 0 else _TICK_S


class TunnelConnection:
    """The way to one node through the tunnel, for one thread; see `chimera.engines.http.transport.Transport`."""

    waits = True

    def __init__(self, tunnel: Tunnel, node: str) -> None:
        self._tunnel, self._node = tunnel, node
        self._broken_by: str | None = None
        self._current: _Call | None = None

    def request(
        self,
        verb: str,
        path: str,
        body: bytes = b"",
        content_type: str = http.JSON,
        *,
        timeout_s: float,
        idempotent: bool,  # noqa: ARG002 - the node runs every call once
    ) -> http.Answer:
        """Send a request and return the answer; while the node is not connected, wait for it.

        The time limit does not pass while the call waits for the administrator of the node.

        Raises
        ------
        TimeLimitError : the request exceeded its time limit.
        Unreachable : the node was away for too long, or the request was broken off.
        InvalidAnswer : the answer is too large.
        """
        began_s = time.monotonic()
        deadline_s = began_s + timeout_s
        call = self._current = _Call(self._node, verb, path, content_type, body)
        # A call waits for a node that is away already, such as one that creates the actor of a lost worker again. A heartbeat
        # does not wait: it states what is known.
        since_s = began_s if call.once else 0.0
        self._tunnel.start(call)
        try:
            while not call.ended.wait(_tick(deadline_s)):
                if self._broken_by or (why := self._tunnel.absent(self._node, since_s)):
                    raise http.Unreachable(self._broken_by or why)
                if time.monotonic() >= max(deadline_s, call.waits_s + max(timeout_s, _SAYS_S)):
                    raise TimeLimitError(f"{verb} {self._node}{path} took longer than {timeout_s:g} s")
        finally:
            self._current = None
            if call.result is None:
                self._tunnel.drop(call)
        if call.result is None:
            raise call.failure or http.Unreachable(self._broken_by or "the request was broken off")
        return call.result

    def break_off(self, why: str) -> None:
        """Abort the current request, from another thread. It and all later requests raise `Unreachable`."""
        self._broken_by = why
        call = self._current
        if call is not None:
            call.end(None, http.Unreachable(why))

    def close(self) -> None:
        """Do nothing: the tunnel belongs to the engine."""
