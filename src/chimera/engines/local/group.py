"""Groups of the local engine, whose members share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core import call
from chimera.core.errors import ConfigurationError
from chimera.engines.local.process import LocalContext, actor_name
from chimera.engines.shared_memory.memory import Memory
from chimera.engines.shared_memory.shared_group import SharedGroup, allocate_table


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
    actor_context = call._actor_context
    if not isinstance(actor_context, LocalContext):
        raise ConfigurationError("a group works inside the actors that are its members")
    memory = actor_context.memory
    if memory.me not in members:
        raise ConfigurationError(f"{actor_name(memory, memory.me)} is not a member of this group")
    if table not in actor_context.groups:  # the count of arrivals continues from call to call
        names = [actor_name(memory, member) for member in members]
        actor_context.groups[table] = SharedGroup(actor_context, memory, actor_context.notifier, table, members, names)
    group: SharedGroup = actor_context.groups[table]
    return group
