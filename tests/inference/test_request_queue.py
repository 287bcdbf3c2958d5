"""What waits for a served model: each request has the answers to its own queries, in their order, whatever comes between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import RunError, UnavailableError
from chimera.engines.http import wire
from chimera.inference.coordinator.request_queue import MOST_WAITING, MOST_WAITING_BYTES, Asked, Inbox, QueueFullError
from chimera.inference.scheduling.job import Batch


def answers(queries: list[int]) -> bytes:
    return wire.pack([{"result": 2 * query} for query in queries])


@given(st.lists(st.tuples(st.sampled_from(["put", "withdraw", "compose", "deliver"]), st.integers(0, 9)), max_size=60))
def test_each_request_has_its_own_answers_in_order(steps: list[tuple[str, int]]) -> None:
    inbox = Inbox()
    asked: list[Asked] = []
    withdrawn: set[Asked] = set()
    under_way: list[Batch] = []
    queries = cursor = numbers = 0
    for what, size in [*steps, *[("compose", 9), ("deliver", 0)] * 600]:
        if what == "put":
            asked.append(Asked(list(range(queries, queries + size + 1)), 1))
            inbox.put(asked[-1])
            queries += size + 1
        elif what == "withdraw" and asked:
            gone = asked[size % len(asked)]
            queries -= inbox.withdraw(gone)
            withdrawn.add(gone)
        elif what == "compose" and queries > cursor:
            under_way.append(Batch(numbers, cursor, min(size + 1, queries - cursor)))
            inbox.compose(under_way[-1])
            inbox.compose(under_way[-1])  # it is dispatched again
            numbers, cursor = numbers + 1, cursor + under_way[-1].count
        elif what == "deliver" and under_way:
            batch = under_way.pop(size % len(under_way))
            inbox.deliver(batch, answers(inbox.queries(batch)))
    for one in asked:
        if one not in withdrawn:
            assert one.answers.result(0) == [{"result": 2 * query} for query in one.queries]


def test_queries_that_nobody_waits_for_are_in_no_batch() -> None:
    inbox = Inbox()
    first, second = Asked([1, 2, 3], 1), Asked([4, 5], 1)
    inbox.put(first)
    inbox.put(second)
    inbox.compose(Batch(0, 0, 1))
    assert inbox.withdraw(first) == 2
    inbox.compose(Batch(1, 1, 2))
    assert inbox.queries(Batch(1, 1, 2)) == [4, 5]


def test_the_queue_is_bounded_in_number_and_size_and_frees_what_is_answered() -> None:
    inbox = Inbox()
    inbox.put(Asked([0] * MOST_WAITING, 1))
    with pytest.raises(QueueFullError, match="1000 queries wait"):
        inbox.put(Asked([0], 1))
    inbox = Inbox()
    large = Asked([0], MOST_WAITING_BYTES)
    inbox.put(large)
    with pytest.raises(QueueFullError):
        inbox.put(Asked([0], 1))
    inbox.compose(Batch(0, 0, 1))
    inbox.deliver(Batch(0, 0, 1), answers([0]))
    inbox.put(Asked([0], MOST_WAITING_BYTES))


@pytest.mark.parametrize("body", [b"nonsense", wire.pack([{"result": 1}]), wire.pack(7)])
def test_an_answer_that_no_worker_should_give_is_an_error_of_each_query(body: bytes) -> None:
    inbox = Inbox()
    asked = Asked([1, 2], 1)
    inbox.put(asked)
    inbox.compose(Batch(0, 0, 2))
    inbox.deliver(Batch(0, 0, 2), body)
    assert all("error" in found for found in asked.answers.result(0))


def test_whoever_waits_is_told_when_nobody_will_answer() -> None:
    inbox = Inbox()
    asked = Asked([1, 2], 1)
    inbox.put(asked)
    inbox.compose(Batch(0, 0, 1))
    inbox.refuse(UnavailableError("it is over"))
    with pytest.raises(UnavailableError, match="it is over"):
        asked.answers.result(0)
    with pytest.raises(RunError):
        inbox.queries(Batch(0, 0, 1))
