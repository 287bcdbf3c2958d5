"""The queue of a served model: each request gets the answers of its own queries, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import RunError, UnavailableError
from chimera.engines.http import wire
from chimera.inference.coordinator.request_queue import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    PendingRequest,
    QueueFullError,
    RequestQueue,
)
from chimera.inference.scheduling.batch import Batch
from chimera.inference.worker.protocol import Piece


def answers(queries: list[int]) -> bytes:
    return wire.pack([{"result": 2 * query} for query in queries])


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "withdraw", "dispatched", "split", "deliver"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_each_request_has_its_own_answers_in_order(steps: list[tuple[str, int]]) -> None:
    queue = RequestQueue()
    pending: list[PendingRequest] = []
    withdrawn: set[PendingRequest] = set()
    under_way: list[Batch] = []
    queries = cursor = numbers = 0
    for what, size in [*steps, *[("dispatched", 9), ("deliver", 0)] * 600]:
        if what == "put":
            pending.append(PendingRequest(list(range(queries, queries + size + 1)), 1))
            queue.put(pending[-1])
            queries += size + 1
        elif what == "withdraw" and pending:
            gone = pending[size % len(pending)]
            queries -= queue.withdraw(gone)
            withdrawn.add(gone)
        elif what == "dispatched" and queries > cursor:
            under_way.append(Batch(numbers, cursor, min(size + 1, queries - cursor)))
            queue.dispatched(under_way[-1])
            queue.dispatched(under_way[-1])  # it is dispatched again
            numbers, cursor = numbers + 1, cursor + under_way[-1].count
        elif what == "split" and under_way:
            batch = under_way.pop(size % len(under_way))
            parts = batch.split(range(numbers, numbers + min(batch.count, 2)))
            assert sum(part.count for part in parts) == batch.count
            queue.split(batch, parts)
            under_way += parts
            numbers += len(parts)
        elif what == "deliver" and under_way:
            batch = under_way.pop(size % len(under_way))
            queue.deliver(batch, answers(queue.queries(batch)))
    for one in pending:
        if one not in withdrawn:
            assert one.answers.result(0) == [{"result": 2 * query} for query in one.queries]


def test_a_part_of_an_answer_reaches_the_request_of_its_query() -> None:
    queue, taken = RequestQueue(), []
    for name in "ab":
        queue.put(PendingRequest([1, 2], 1, lambda *piece, name=name: taken.append((name, *piece))))
    queue.dispatched(Batch(7, 0, 3))
    for index in (2, 1, 3, -4):
        queue.take(Piece("1", 7, index, 5, "text"))
    queue.take(Piece("1", 8, 0, 5, "text"))
    assert taken == [("b", 0, 5, "text"), ("a", 1, 5, "text")]


def test_queries_that_nobody_waits_for_are_in_no_batch() -> None:
    queue = RequestQueue()
    first, second = PendingRequest([1, 2, 3], 1), PendingRequest([4, 5], 1)
    queue.put(first)
    queue.put(second)
    queue.dispatched(Batch(0, 0, 1))
    assert queue.withdraw(first) == 2
    queue.dispatched(Batch(1, 1, 2))
    assert queue.queries(Batch(1, 1, 2)) == [4, 5]


def test_the_queue_is_bounded_in_number_and_size_and_frees_what_is_answered() -> None:
    queue = RequestQueue()
    queue.put(PendingRequest([0] * MAX_WAITING, 1))
    with pytest.raises(QueueFullError, match="1000 queries wait"):
        queue.put(PendingRequest([0], 1))
    queue = RequestQueue()
    large = PendingRequest([0], MAX_WAITING_BYTES)
    queue.put(large)
    with pytest.raises(QueueFullError):
        queue.put(PendingRequest([0], 1))
    queue.dispatched(Batch(0, 0, 1))
    queue.deliver(Batch(0, 0, 1), answers([0]))
    queue.put(PendingRequest([0], MAX_WAITING_BYTES))


@pytest.mark.parametrize("body", [b"nonsense", wire.pack([{"result": 1}]), wire.pack(7)])
def test_an_answer_that_no_worker_should_give_is_an_error_of_each_query(body: bytes) -> None:
    queue = RequestQueue()
    pending = PendingRequest([1, 2], 1)
    queue.put(pending)
    queue.dispatched(Batch(0, 0, 2))
    queue.deliver(Batch(0, 0, 2), body)
    assert all("error" in found for found in pending.answers.result(0))


def test_whoever_waits_is_told_when_nobody_will_answer() -> None:
    queue = RequestQueue()
    pending = PendingRequest([1, 2], 1)
    queue.put(pending)
    queue.dispatched(Batch(0, 0, 1))
    queue.fail(UnavailableError("it is over"))
    with pytest.raises(UnavailableError, match="it is over"):
        pending.answers.result(0)
    with pytest.raises(RunError):
        queue.queries(Batch(0, 0, 1))
