"""The queue of requests to a model that is served online. Clients wait for the answers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from chimera.core.errors import DataError, RunError, UnavailableError
from chimera.engines.http import wire
from chimera.inference.coordinator.job_store import MAX_BATCH_BYTES, JobStore
from chimera.inference.scheduling.batch import Batch
from chimera.inference.worker.protocol import Piece

MAX_WAITING = 1000
"""Maximum number of queries that wait for one model; further requests are refused."""
MAX_WAITING_BYTES = 256 << 20
"""Maximum size in bytes of all unanswered requests to one model."""


class QueueFullError(UnavailableError):
    """The model's queue is full."""


class PendingRequest:
    """One request, until it is answered.

    Parameters
    ----------
    queries : the queries; they may be answered in different batches.
    size : size in bytes of the request.
    take : called in the coordinator's main thread with the position of a query, a position in the text of its answer, and the
        text from there on, while the answer is being generated.

    Attributes
    ----------
    job : number of the job whose queue holds the request; empty before that.
    answers : future of a list of ``{"result": value}`` or ``{"error": text}``, in the order of the queries.
    """

    def __init__(
        self, queries: Sequence[Any], size: int, take: Callable[[int, int, str], None] = lambda *_: None
    ) -> None:
        self.queries, self.size, self.take = list(queries), size, take
        self.job = ""
        self.answers: Future[list[dict[str, Any]]] = Future()
        self.answers.set_running_or_notify_cancel()  # a waiting client that disconnects must not cancel it
        self._found: list[dict[str, Any]] = [{}] * len(self.queries)
        self._left = len(self.queries)

    def answer(self, position: int, found: dict[str, Any]) -> None:
        """Set the answer of one query; the last one completes the future."""
        self._found[position] = found
        self._left -= 1
        if not self._left and not self.answers.done():
            self.answers.set_result(self._found)

    def fail(self, error: BaseException) -> None:
        """Complete the future with an error, unless it is complete."""
        if not self.answers.done():
            self.answers.set_exception(error)


_Waiting: TypeAlias = tuple[PendingRequest, int]  # a request, and the position of one of its queries


class RequestQueue(JobStore):
    """The waiting queries of one model, oldest first, and those of its running batches. The queue is lost with the process."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._batches: dict[int, list[_Waiting]] = {}
        self._unanswered: dict[PendingRequest, None] = {}
        self._size = 0

    def put(self, pending: PendingRequest) -> None:
        """Append a request.

        Raises
        ------
        QueueFullError : the queue has too many queries or bytes already.
        """
        if len(self._waiting) + len(pending.queries) > MAX_WAITING or self._size + pending.size > MAX_WAITING_BYTES:
            raise QueueFullError(f"{len(self._waiting)} queries wait for this model already: try again later")
        self._unanswered[pending] = None
        self._size += pending.size
        self._waiting += [(pending, position) for position in range(len(pending.queries))]

    def withdraw(self, pending: PendingRequest) -> int:
        """Remove a request whose client no longer waits; return how many of its queries were in no batch yet."""
        before = len(self._waiting)
        self._waiting = deque(each for each in self._waiting if each[0] is not pending)
        self._remove(pending)
        return before - len(self._waiting)

    def fitting(self, batch: Batch) -> int:
        """Count each query as its share of its request."""
        size = 0.0
        for position, (pending, _) in enumerate(itertools.islice(self._waiting, batch.count)):
            size += pending.size / len(pending.queries)
            if position and size > MAX_BATCH_BYTES:
                return position
        return batch.count

    def dispatched(self, batch: Batch) -> None:
        """Assign the oldest waiting queries to a batch. A batch that is dispatched again keeps its queries."""
        if batch.number not in self._batches:
            self._batches[batch.number] = [self._waiting.popleft() for _ in range(batch.count)]

    def split(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Divide the queries of a batch among the batches that replace it."""
        members = iter(self._batches.pop(batch.number))
        for part in parts:
            self._batches[part.number] = [next(members) for _ in range(part.count)]

    def queries(self, batch: Batch) -> list[Any]:  # noqa: D102
        members = self._batches.get(batch.number)
        if members is None:
            raise RunError("the batch is finished or cancelled")
        return [pending.queries[position] for pending, position in members]

    def take(self, piece: Piece) -> None:  # noqa: D102
        members = self._batches.get(piece.batch, [])
        for pending, position in members[piece.index : piece.index + 1]:
            pending.take(position, piece.at, piece.text)

    def deliver(self, batch: Batch, body: bytes) -> None:  # noqa: D102
        for (pending, position), found in zip(
            self._batches.pop(batch.number), _unpacked(body, batch.count), strict=True
        ):
            pending.answer(position, found)
            if pending.answers.done():
                self._remove(pending)

    def fail(self, error: Exception) -> None:  # noqa: D102
        for pending in list(self._unanswered):
            pending.fail(error)
            self._remove(pending)
        self._waiting.clear()
        self._batches.clear()

    def _remove(self, pending: PendingRequest) -> None:
        if pending in self._unanswered:
            del self._unanswered[pending]
            self._size -= pending.size


def _unpacked(body: bytes, count: int) -> list[dict[str, Any]]:
    """Return the answers of a batch; an invalid body is an error for each query."""
    try:
        found = wire.unpack(body)
    except DataError as error:
        return [{"error": f"the answer is damaged: {error}"}] * count
    if not isinstance(found, list) or len(found) != count:
        return [{"error": "the worker's answer does not match the queries"}] * count
    return found
