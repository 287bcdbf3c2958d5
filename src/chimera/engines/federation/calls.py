"""The unanswered calls of a driver. Each is sent again after a lost connection, until its answer arrives."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from chimera.engines.federation.wire.frames import (
    CHUNK,
    MAX_SETTLED_CALLS,
    Acknowledged,
    Answer,
    BodyChunk,
    CallRequest,
    Done,
    pack,
)
from chimera.engines.federation.wire.port import Port
from chimera.engines.federation.wire.streams import Receiving, Sending
from chimera.engines.http import connection as http
from chimera.engines.http.joined import calls_in

_AGAIN = 1 << 13  # bytes; a larger body is sent again after the question, not with it
_SETTLE_S = 0.2  # seconds; answers within this time are confirmed together


class Call:
    """A request without an answer.

    Attributes
    ----------
    once : whether the node must not run it twice.
    count : number of calls in the request. Each has a number: the first has that of the request, the others the next ones.
    answer : the part of the answer that has arrived.
    waits_s : when its node last reported that the call waits for the node's administrator or policy.
    policy_s : since when the call waits for the policy; infinite if it does not wait.
    result, failure : the answer, or the exception in its place.
    """

    def __init__(self, node: str, verb: str, path: str, content_type: str, body: bytes) -> None:
        self.node, self.verb, self.path, self.type = node, verb, path, content_type
        self.body = memoryview(body)
        self.number = 0
        self.once = verb == "POST"
        self.count = calls_in(path) if self.once else 1
        self.asked = False
        self.sending = Sending(len(body))
        self.answer: Receiving | None = None
        self.status = 0
        self.waits_s = -math.inf
        self.policy_s = math.inf
        self.ended = threading.Event()
        self.result: http.Answer | None = None
        self.failure: Exception | None = None

    def end(self, result: http.Answer | None, failure: Exception | None = None) -> None:
        """Wake the thread that waits."""
        if not self.ended.is_set():
            self.result, self.failure = result, failure
            self.ended.set()


class Calls:
    """The calls of one run. All methods are called in the thread of the event loop.

    Parameters
    ----------
    run : key of the run.
    max_bytes : maximum size of an answer, in bytes.

    Attributes
    ----------
    port : sends frames to the hub; None while there is no connection.
    boots : the connected nodes, each with the name of its process.
    """

    def __init__(self, run: str, max_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._max_bytes, self._loop = run, max_bytes, loop
        self.port: Port | None = None
        self.boots: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._open: defaultdict[str, set[int]] = defaultdict(set)  # calls without an answer, by node
        self._settled: defaultdict[str, list[int]] = defaultdict(
            list
        )  # settled calls of which the node is not notified yet
        self._settling = False

    def __len__(self) -> int:
        return len(self._calls)

    def all(self) -> list[Call]:
        """Return the calls without an answer; another thread may call this."""
        return list(self._calls.copy().values())

    def find(self, number: int, node: str) -> Call | None:
        """Return the call of a node that has this number."""
        call = self._calls.get(number)
        return call if call is not None and call.node == node else None

    def start(self, calls: Sequence[Call]) -> None:
        """Give calls their numbers, and ask for the answers whose nodes are connected."""
        with nullcontext() if self.port is None else self.port.together():
            for call in calls:
                self._start(call)

    def _start(self, call: Call) -> None:
        if call.ended.is_set():
            return
        call.number, *_ = (next(self._numbers) for _ in range(call.count))
        self._calls[call.number] = call
        if call.once:
            self._open[call.node].add(call.number)
        if call.node in self.boots:
            self._ask(call)

    def ask_again(self, nodes: Mapping[str, str]) -> None:
        """Ask for all answers of these nodes, and notify all nodes which answers are settled."""
        for call in list(self._calls.values()):
            if call.node in nodes:
                self._ask(call)
        self.confirm_answers()

    def _ask(self, call: Call) -> None:
        """Ask for the answer, for the first time or again."""
        if self.port is None:
            return
        size, again = len(call.body), call.asked and len(call.body) > _AGAIN
        first = call.body[:0] if again else call.body[:CHUNK]
        have = 0 if call.answer is None else call.answer.got
        header = CallRequest(self._run, call.number, call.node, call.verb, call.path, call.type, size, have)  # type: ignore[arg-type]
        self.port.post(pack(header, first))
        call.sending = Sending(size)
        call.sending.skip(len(first))
        if size <= CHUNK or not call.asked:  # a node that has the body answers at once, and ignores the chunk
            self._send(call)  # for a larger body, the node first reports which part it has
        call.asked = True

    def _send(self, call: Call) -> None:
        if self.port is not None:
            for begin, end in call.sending.due():
                self.port.post(pack(BodyChunk(self._run, call.number, call.node, begin), call.body[begin:end]))

    def took(self, header: Acknowledged) -> None:
        """Send the chunks for which there is room now."""
        call = self.find(header.number, header.node)
        if call is not None:
            call.sending.took(header.at)
            self._send(call)

    def answered(self, header: Answer, payload: memoryview) -> None:
        """Take a chunk of an answer."""
        call = self.find(header.number, header.node)
        if call is None:
            self._settle(header.node, header.number)
        elif header.size > self._max_bytes:
            text = f"an answer of {header.size} bytes, but only {self._max_bytes} are allowed"
            self.end(call, None, http.InvalidAnswer(text))
        elif (got := self._receiving(call, header)) is None:
            self._ask(call)
        elif got.take(header.at, payload):
            if got.complete:
                self.end(call, http.Answer(header.status, header.type, got.body()))
            elif self.port is not None:
                self.port.post(pack(Acknowledged(self._run, call.number, call.node, got.got)))

    @staticmethod
    def _receiving(call: Call, header: Answer) -> Receiving | None:
        """Return the answer that a chunk belongs to; None for the rest of an answer of a process that has ended."""
        if call.answer is None or (call.answer.size, call.status) != (header.size, header.status):
            call.status = header.status
            call.answer = None if header.at else Receiving(header.size)
        return call.answer

    def end(self, call: Call, result: http.Answer | None, failure: Exception | None = None) -> None:
        """End a call. Its node may drop the answer."""
        call.end(result, failure)
        if self._calls.pop(call.number, None) is not None and call.once:
            self._open[call.node].discard(call.number)
            self._settle(call.node, call.number)

    def end_all(self, reason: str) -> None:
        """End all calls without an answer."""
        for call in self._calls.values():
            call.end(None, http.Unreachable(reason))

    def _settle(self, node: str, number: int) -> None:
        """Notify a node soon that it may drop an answer."""
        self._settled[node].append(number)
        if not self._settling:
            self._settling = True
            self._loop.call_later(_SETTLE_S, self.confirm_answers)

    def confirm_answers(self) -> None:
        """Notify the connected nodes which answers they may drop."""
        self._settling = False
        for node in [node for node in self._settled if node in self.boots]:
            numbers = self._settled.pop(node)
            floor = min(self._open[node], default=max(numbers) + 1)
            for place in range(0, len(numbers), MAX_SETTLED_CALLS):
                if self.port is not None:
                    self.port.post(pack(Done(self._run, node, floor, numbers[place : place + MAX_SETTLED_CALLS])))
