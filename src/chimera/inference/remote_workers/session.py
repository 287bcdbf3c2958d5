"""The coordinator's side of the connection with one remote worker: requests that wait for the worker, and its answers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chimera.core.errors import DataError, TimeLimitError, UnavailableError
from chimera.engines.http.connection import Answer, Unreachable
from chimera.inference.remote_workers.protocol import GONE, LATE, PIECE_BYTES, Piece, PieceRequest, Report

_MAX_CALL_S = 600.0  # limit of a request, also if a machine reports repeatedly that it handles the request


@dataclass
class _Request:
    """A request, and the part of its answer that has arrived."""

    number: int
    what: str
    body: bytes
    began_s: float = field(default_factory=time.monotonic)
    progress_s: float = field(default_factory=time.monotonic)
    is_taken: bool = False
    received: bytearray = field(default_factory=bytearray)
    reserved: int = 0
    answer: Answer | None = None

    def piece(self, at: int) -> Piece:
        data = self.body[at : at + PIECE_BYTES]
        return Piece(self.number, self.what, 0, at, len(self.body), data)


class AnswerBudget:
    """Memory for the answers that arrive in pieces from all remote workers. All methods are thread-safe."""

    def __init__(self, size: int) -> None:
        self._left, self._lock = size, threading.Lock()

    def take(self, size: int) -> None:
        """Reserve bytes. Raise UnavailableError if too few are free."""
        with self._lock:
            if size > self._left:
                raise UnavailableError("too many large answers of remote workers arrive at once")
            self._left -= size

    def give_back(self, size: int) -> None:
        """Release bytes."""
        with self._lock:
            self._left += size


class Session:
    """The connection with one start of a remote worker. All methods are thread-safe.

    Parameters
    ----------
    name : name of the worker.
    report : the first report about it.
    budget : memory for answers.

    Attributes
    ----------
    report : the last report.
    seen_s : time of that report, by the monotonic clock.
    kills : whether the machine must kill the worker.
    other_versions : warning that the worker has other versions of libraries; empty: it has the same.
    """

    def __init__(self, name: str, report: Report, budget: AnswerBudget) -> None:
        self.name, self.report, self._budget = name, report, budget
        self.seen_s, self.kills, self.other_versions = time.monotonic(), False, ""
        self._changed = threading.Condition()
        self._wakes: list[Callable[[], object]] = []
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count(1)
        self._ended = ""

    @property
    def warnings(self) -> str:
        """What is unusual about the worker and its machine; empty: nothing."""
        return "; ".join(filter(None, (self.report.warning, self.other_versions)))

    @property
    def silent_s(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self.seen_s

    def is_of(self, report: Report) -> bool:
        """Return whether a report is about the same start of the worker."""
        return (self.report.machine, self.report.address) == (report.machine, report.address)

    def call(self, what: str, body: bytes, timeout_s: float, broken: Callable[[], str]) -> Answer:
        """Send a request to the worker, and return its answer.

        Parameters
        ----------
        timeout_s : maximum seconds without any piece of the request or the answer, or a report that the machine handles it.
        broken : returns why the caller does not wait any longer; empty while it does. `wake` makes `call` check it.

        Raises
        ------
        Unreachable : the worker is dead, has restarted or has left; or the caller does not wait any longer.
        TimeLimitError : nothing has arrived in time.
        """
        with self._changed:
            own = _Request(next(self._numbers), what, body)
            self._requests[own.number] = own
            self._notify()
            try:
                self._await(own, timeout_s, broken)
            finally:
                del self._requests[own.number]
                self._budget.give_back(own.reserved)
        assert own.answer is not None
        if own.answer.status == GONE:
            raise Unreachable(f"{self.name} is dead")
        if own.answer.status == LATE:
            raise TimeLimitError(f"{self.name} has not answered {what} in time")
        return own.answer

    def _await(self, own: _Request, timeout_s: float, broken: Callable[[], str]) -> None:
        while own.answer is None:
            if reason := broken() or self._ended:
                raise Unreachable(reason)
            left_s = min(own.progress_s + timeout_s, own.began_s + _MAX_CALL_S) - time.monotonic()
            if left_s <= 0:
                raise TimeLimitError(f"nothing has arrived from {self.name} for {timeout_s:g} s")
            self._changed.wait(left_s)

    def wake(self) -> None:
        """Make all calls check whether they still wait."""
        with self._changed:
            self._notify()

    def end(self, reason: str) -> None:
        """End all calls: the worker is not there any more."""
        with self._changed:
            self._ended = reason
            self._notify()

    def kill(self) -> None:
        """Kill the worker through its machine."""
        with self._changed:
            self.kills = True
            self._notify()

    def note(self, report: Report) -> None:
        """Note a report."""
        with self._changed:
            self.report, self.seen_s = report, time.monotonic()
            for number in report.handled:
                if number in self._requests:
                    self._requests[number].progress_s = self.seen_s

    def take(self) -> Piece | None:
        """Return the first piece of the oldest request that was not sent yet."""
        with self._changed:
            for each in self._requests.values():
                if not each.is_taken:
                    each.is_taken, each.progress_s = True, time.monotonic()
                    return each.piece(0)
        return None

    def more(self, wanted: PieceRequest) -> Piece | None:
        """Return another piece of a request; None if the request has ended."""
        with self._changed:
            found = self._requests.get(wanted.number)
            if found is None or wanted.at >= len(found.body):
                return None
            found.progress_s = time.monotonic()
            return found.piece(wanted.at)

    def accept(self, piece: Piece) -> bool:
        """Take over a piece of an answer, and return whether it was the last one. A piece that came before is ignored.

        Raises
        ------
        UnavailableError : there is no room for the answer now.
        """
        last = piece.at + len(piece.data) >= piece.size
        with self._changed:
            found = self._requests.get(piece.number)
            if found is None or not found.is_taken or piece.at != len(found.received):
                return last
            if piece.at == 0:
                self._budget.take(piece.size)
                found.reserved = piece.size
            if len(found.received) + len(piece.data) > found.reserved:
                raise DataError("the answer is longer than its first piece says")
            found.received += piece.data
            found.progress_s = time.monotonic()
            if last:
                found.answer = Answer(piece.status, piece.what, bytes(found.received))
                self._notify()
        return last

    @contextlib.contextmanager
    def on_change(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call a function, in any thread, whenever `take` may have a request, or `kills` has changed."""
        with self._changed:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._wakes.remove(wake)

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._wakes:
            wake()


class SessionConnection:
    """Sends requests like `chimera.engines.http.connection.Connection`, but to a remote worker over its own connections."""

    def __init__(self, session: Session) -> None:
        self._session, self._broken_by = session, ""

    def request(
        self,
        verb: str,  # noqa: ARG002 - all requests to workers are POST
        path: str,
        body: bytes = b"",
        content_type: str = "",  # noqa: ARG002 - it is always that of `wire`
        *,
        timeout_s: float,
        idempotent: bool,  # noqa: ARG002 - a request is sent once
    ) -> Answer:
        """Send a request, and return the answer; see `Session.call`."""
        return self._session.call(path.rpartition("/")[2], body, timeout_s, lambda: self._broken_by)

    def break_off(self, reason: str) -> None:
        """Abort the current request, from another thread. This request and all later ones raise `Unreachable`."""
        self._broken_by = reason
        self._session.wake()

    def close(self) -> None:
        """Do nothing: the machine closes its connections."""
