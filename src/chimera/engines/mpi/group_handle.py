"""A group as the driver holds it, and the choice of its transport inside its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ActorLost, ConfigurationError
from chimera.engines.mpi.calls import Peer
from chimera.engines.mpi.context import MpiContext
from chimera.engines.mpi.group import MpiGroup, lost_member
from chimera.engines.mpi.shared import Meeting
from chimera.engines.shared_memory.shared_group import SharedGroup
from chimera.engines.thread_context import context_of_thread


class GroupHandle:
    """A group in the driver. It can be an argument of calls; inside a member it becomes a `SharedGroup` or an `MpiGroup`.

    Parameters
    ----------
    first_tag : first tag of its messages, see `Job.new_tags`.
    members : its members, in order.
    meeting : location of their shared memory; None if they share none.
    """

    def __init__(self, first_tag: int, members: Sequence[Peer], meeting: Meeting | None) -> None:
        self._first_tag, self._members, self._meeting = first_tag, tuple(members), meeting

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (self._first_tag, tuple(map(tuple, self._members)), self._meeting and tuple(self._meeting))


def _join(
    first_tag: int, members: Sequence[tuple[int, int, str]], meeting: tuple[int, tuple[int, ...]] | None
) -> MpiGroup | SharedGroup | GroupHandle:
    context, peers = context_of_thread(), [Peer(*member) for member in members]
    if not isinstance(context, MpiContext):
        return GroupHandle(first_tag, peers, Meeting(*meeting) if meeting else None)
    if context.actor not in [peer.actor for peer in peers]:
        raise ConfigurationError(f"{context.name} is not a member of this group")
    if first_tag not in context.groups:
        context.groups[first_tag] = (
            _shared_group(context, peers, Meeting(*meeting)) if meeting else MpiGroup(context, first_tag, peers)
        )
    group: MpiGroup | SharedGroup = context.groups[first_tag]
    return group


def _shared_group(context: MpiContext, members: Sequence[Peer], meeting: Meeting) -> SharedGroup:
    assert context.memory is not None
    assert context.notifier is not None
    dead = context.rank.dead

    def look() -> None:
        context.alive()
        if lost := lost_member(members, dead):
            raise ActorLost(f"{lost} died, and its group with it")

    names = [member.name for member in members]
    return SharedGroup(context, context.memory, context.notifier, *meeting, names, look)
