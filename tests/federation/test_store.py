"""The store of a node knows the calls that were started, in any order and in the next process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from chimera.engines.http.hosting.hosted_actor import Reply
from chimera.federation.node.store import DONE, SETTLED, STARTED, Store

RUN = "0" * 32


def states(store: Store) -> list[int | None]:
    found = [store.find(RUN, number) for number in range(1, 7)]
    return [None if kept is None else kept.state for kept in found]


def test_calls_are_found_in_any_order_and_after_a_restart(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        assert store.owns(RUN, "alice", "f")
        assert states(store) == [None] * 6
        store.finish(RUN, 5, Reply(200, "text/plain", b"five"))
        store.begin(RUN, 3)
        store.finish(RUN, 1, Reply(200, "text/plain", b"one"))
        store.settle(RUN, 2, [5])
        expected = [SETTLED, None, STARTED, None, SETTLED, None]
        assert states(store) == expected
    with contextlib.closing(Store(tmp_path)) as store:
        assert states(store) == expected
        store.finish(RUN, 3, Reply(200, "text/plain", b"three"))
        assert states(store)[2] == DONE
        assert store.find("1" * 32, 1) is None
