"""The queries of a served model: they come as they come, and whoever sent them waits for the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from chimera.core.errors import DataError, RunError, UnavailableError
from chimera.engines.http import wire
from chimera.inference.coordinator.job_store import Store
from chimera.inference.scheduling.job import Batch

MOST_WAITING = 1000
"""So many queries wait for one model; further ones are refused."""
MOST_WAITING_BYTES = 256 << 20
"""So large may they be together."""


class QueueFullError(UnavailableError):
    """Too many queries wait for this model already."""


class Asked:
    """One request.

    Parameters
    ----------
    queries : one or a few, which may be answered in different batches.
    size : bytes that they took in the request.

    Attributes
    ----------
    job : the number of the job that it was put to; empty before that.
    answers : the future list of ``{"result": value}`` or ``{"error": text}``, in the order of the queries.
    """

    def __init__(self, queries: Sequence[Any], size: int) -> None:
        self.queries, self.size = list(queries), size
        self.job = ""
        self.answers: Future[list[dict[str, Any]]] = Future()
        self.answers.set_running_or_notify_cancel()  # who stops waiting for it does not cancel it
        self._found: list[dict[str, Any]] = [{}] * len(self.queries)
        self._left = len(self.queries)

    def take(self, place: int, found: dict[str, Any]) -> None:
        """Take the answer to one query; with the last one it is answered."""
        self._found[place] = found
        self._left -= 1
        if not self._left and not self.answers.done():
            self.answers.set_result(self._found)


_Waiting: TypeAlias = tuple[Asked, int]  # a request, and the place of one of its queries


class Inbox(Store):
    """What waits for one model, the earliest first, and what is under way. Nothing of it outlasts this process."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._batches: dict[int, list[_Waiting]] = {}
        self._requests: dict[Asked, None] = {}  # that are not answered
        self._size = 0

    def put(self, asked: Asked) -> None:
        """Take a request on.

        Raises
        ------
        QueueFullError : too much waits already.
        """
        if len(self._waiting) + len(asked.queries) > MOST_WAITING or self._size + asked.size > MOST_WAITING_BYTES:
            raise QueueFullError(f"{len(self._waiting)} queries wait for this model already: ask again later")
        self._requests[asked] = None
        self._size += asked.size
        self._waiting += [(asked, place) for place in range(len(asked.queries))]

    def withdraw(self, asked: Asked) -> int:
        """Forget a request for which nobody waits any more; return how many of its queries were in no batch yet."""
        before = len(self._waiting)
        self._waiting = deque(one for one in self._waiting if one[0] is not asked)
        self._forget(asked)
        return before - len(self._waiting)

    def compose(self, batch: Batch) -> None:
        """Make a batch of those that wait; one that is dispatched again keeps its queries."""
        if batch.number not in self._batches:
            self._batches[batch.number] = [self._waiting.popleft() for _ in range(batch.count)]

    def queries(self, batch: Batch) -> list[Any]:  # noqa: D102
        held = self._batches.get(batch.number)
        if held is None:
            raise RunError("nobody wants it any more")
        return [asked.queries[place] for asked, place in held]

    def deliver(self, batch: Batch, body: bytes) -> None:  # noqa: D102
        for (asked, place), found in zip(self._batches.pop(batch.number), _unpacked(body, batch.count), strict=True):
            asked.take(place, found)
            if asked.answers.done():
                self._forget(asked)

    def refuse(self, error: Exception) -> None:  # noqa: D102
        for asked in list(self._requests):
            asked.answers.set_exception(error)
            self._forget(asked)
        self._waiting.clear()
        self._batches.clear()

    def _forget(self, asked: Asked) -> None:
        if asked in self._requests:
            del self._requests[asked]
            self._size -= asked.size


def _unpacked(body: bytes, count: int) -> list[dict[str, Any]]:
    """Return the answers of a batch; what no worker should have sent is an error for each query."""
    try:
        found = wire.unpack(body)
    except DataError as error:
        return [{"error": f"the answer is damaged: {error}"}] * count
    if not isinstance(found, list) or len(found) != count:
        return [{"error": "the worker has answered something else than these queries"}] * count
    return found
