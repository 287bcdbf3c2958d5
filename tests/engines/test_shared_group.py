"""A group whose members share memory, without separate processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from chimera.core.call import ActorContext
from chimera.core.errors import ActorLost
from chimera.engines.shared_memory.memory import ACTORS, DEAD, DRIVER, Memory, create_file
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.shared_memory.shared_group import SharedGroup, allocate_table

MEMBERS = 1, 2


class Costs(ActorContext):
    waited_s, collective_bytes = 0.0, 0


class MappedMemory(Costs):
    """An object that creates its arrays in memory that the others can read."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.empty = memory.empty  # type: ignore[method-assign]


@pytest.fixture
def driver() -> Iterator[Memory]:
    with closing(Memory(create_file(), DRIVER)) as memory:
        memory.own.words[ACTORS] = 1 + len(MEMBERS)
        yield memory


@pytest.fixture
def groups(driver: Memory) -> Iterator[list[SharedGroup]]:
    """Return the group as each of two members has it; here both are threads of one process."""
    table = allocate_table(driver, len(MEMBERS))
    memories = [Memory(os.dup(driver.fd), member) for member in MEMBERS]
    yield [
        SharedGroup(MappedMemory(memory), memory, Notifier(memory), table, MEMBERS, ["first", "second"])
        for memory in memories
    ]
    for memory in memories:
        memory.close()


def meet(groups: list[SharedGroup], what: Callable[[SharedGroup, int], Any]) -> list[Any]:
    """Let all members run it at once; return their results or exceptions."""
    with ThreadPoolExecutor(len(groups)) as threads:
        futures = [threads.submit(what, group, rank) for rank, group in enumerate(groups)]
    return [future.exception() or future.result() for future in futures]


def test_vectors_are_added_wherever_they_lie(groups: list[SharedGroup]) -> None:
    for size in (0, 1, 3, 200_000):
        sums = meet(groups, lambda group, rank, n=size: group.all_reduce(np.full(n, rank + 1, np.float32), "sum"))
        for found in sums:
            np.testing.assert_array_equal(found, np.full(size, 3, np.float32))


@pytest.mark.parametrize("name", ["all_reduce", "broadcast"])
def test_what_the_dead_have_brought_counts_for_nobody(groups: list[SharedGroup], driver: Memory, name: str) -> None:
    """A member that arrived and died may have been read when its memory was released, and full of zeros."""
    driver.region(MEMBERS[0]).words[DEAD] = 1
    for lost in meet(groups, lambda group, rank: getattr(group, name)(np.full(5, rank, np.float32))):
        assert isinstance(lost, ActorLost)
        assert "first died, and its group with it" in str(lost)
