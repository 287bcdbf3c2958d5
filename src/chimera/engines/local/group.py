"""Groups of the local engine, whose members share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core import call
from chimera.core.errors import ConfigurationError
from chimera.engines.local.process import LocalSurroundings, actor_name
from chimera.engines.shared_group import SharedGroup, allocate_table
from chimera.engines.shared_memory import Memory


class GroupHandle:
    """A group in the driver. It can be an argument of calls; inside a member it becomes a `SharedGroup`."""

    def __init__(self, memory: Memory, members: Sequence[int]) -> None:
        self._members = tuple(members)
        self._table = allocate_table(memory, len(members))

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (self._table, self._members)


def _join(table: int, members: tuple[int, ...]) -> SharedGroup:
    surroundings = call._surroundings
    if not isinstance(surroundings, LocalSurroundings):
        raise ConfigurationError("a group works inside the actors that are its members")
    memory = surroundings.memory
    if memory.me not in members:
        raise ConfigurationError(f"{actor_name(memory, memory.me)} is not a member of this group")
    if table not in surroundings.groups:  # the count of arrivals continues from call to call
        names = [actor_name(memory, member) for member in members]
        surroundings.groups[table] = SharedGroup(surroundings, memory, surroundings.doorbell, table, members, names)
    group: SharedGroup = surroundings.groups[table]
    return group
