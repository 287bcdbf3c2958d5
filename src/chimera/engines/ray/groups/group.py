"""Groups of Ray actors: in shared memory if all members share it, and otherwise over the network, or between GPUs."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.errors import ActorLost
from chimera.engines.collectives import Op
from chimera.engines.ray.actor.host import RayContext
from chimera.engines.ray.groups.connections import Connections
from chimera.engines.ray.groups.nccl_group import NcclGroup
from chimera.engines.ray.groups.nccl_link import NcclLink, has_gpus_of_their_own, own_gpu
from chimera.engines.ray.groups.rendezvous import DEATH_CHECK_INTERVAL_S, Members, RendezvousStore
from chimera.engines.ray.groups.tcp_group import TcpGroup
from chimera.engines.ray.shared import Meeting
from chimera.engines.shared_memory.memory import PID, STARTED, Memory
from chimera.engines.shared_memory.shared_group import SharedGroup
from chimera.engines.signals import is_gone

_PROCESS_CHECK_INTERVAL_S = 0.1


class GroupHandle:
    """A group in the driver. It can be an argument of calls; inside a member it becomes a `RayGroup`.

    Parameters
    ----------
    key : unique key of this group.
    members : key and name of each member, in rank order.
    meeting : location of the members' shared memory; None if a member has no region.
    """

    def __init__(self, key: str, members: Sequence[tuple[str, str]], meeting: Meeting | None) -> None:
        self._key, self._members, self._meeting = key, tuple(members), meeting

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (self._key, self._members, self._meeting)


def _join(key: str, members: tuple[tuple[str, str], ...], meeting: Meeting | None) -> RayGroup | GroupHandle:
    actor_context = call._actor_context
    if not isinstance(actor_context, RayContext):
        return GroupHandle(key, members, meeting)
    if key not in actor_context.groups:
        for former in actor_context.groups.values():
            former.end_if_lost()
        actor_context.groups[key] = RayGroup(actor_context, key, members, meeting)
    group: RayGroup = actor_context.groups[key]
    return group


class RayGroup:
    """A group inside one of its members."""

    def __init__(
        self, actor_context: RayContext, key: str, members: tuple[tuple[str, str], ...], meeting: Meeting | None
    ) -> None:
        self._actor_context, self._meeting = actor_context, meeting
        self._members = Members(actor_context, actor_context.me, members)
        self._board = RendezvousStore(key, self._members.check_for_deaths)
        self._transport: SharedGroup | TcpGroup | None = None
        self._checked_s = self._next_check_s = 0.0

    @property
    def size(self) -> int:
        """The number of members."""
        return self._members.size

    def barrier(self) -> None:
        """Return when all members have arrived."""
        self._chosen().barrier()

    def all_reduce(self, array: NDArray[np.float32], op: Op = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits."""
        return self._chosen().all_reduce(array, op)

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Fill ``array`` with the array of member ``root``, in place."""
        return self._chosen().broadcast(array, root)

    def send(self, values: Mapping[int, Any]) -> None:
        """Send the values; if the members share no memory, with the weaker promise of `Connections`."""
        self._chosen(after_loss=True).send(values)

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """See `Group.receive`."""
        return self._chosen(after_loss=True).receive(members, count)

    def end_if_lost(self) -> None:
        """End the connections if a member is dead. The survivors then use another group."""
        if self._members.lost is not None and self._transport is not None:
            if isinstance(self._transport, TcpGroup):
                self._transport.close()
            self._transport = None

    def _chosen(self, *, after_loss: bool = False) -> SharedGroup | TcpGroup:
        """Return the transport; with ``after_loss`` also if a member is dead, because it may have sent values before."""
        if self._members.lost is not None and (self._transport is None or not after_loss):
            raise ActorLost(self._members.lost)
        if self._transport is None:
            began_s = time.monotonic()
            try:
                self._transport = self._choose()
            finally:
                self._actor_context.waited_s += time.monotonic() - began_s
        return self._transport

    def _choose(self) -> SharedGroup | TcpGroup:
        """Choose the transport. Each member reports its GPU and whether it maps the memory, so all members choose alike."""
        from ray.util import get_node_ip_address

        memory, meeting, members, board = self._actor_context.memory, self._meeting, self._members, self._board
        maps = memory is not None and meeting is not None
        board.set(f"here/{members.rank}", b"%d %s" % (maps, own_gpu()))
        entries = [board.get(f"here/{rank}").split() for rank in range(members.size)]
        on_gpus = has_gpus_of_their_own([gpu for _, gpu in entries])
        connect = functools.partial(Connections, self._actor_context, members, board, host=get_node_ip_address())
        if on_gpus:
            link = functools.partial(NcclLink, board, members.rank, members.size)
            return NcclGroup(self._actor_context, members, connect, link)
        if memory is None or meeting is None or any(maps == b"0" for maps, _ in entries):
            return TcpGroup(self._actor_context, members, connect)
        look = functools.partial(self._look, memory, meeting.regions)
        notifier = self._actor_context.notifier()
        return SharedGroup(self._actor_context, memory, notifier, *meeting, members.names, look)

    def _look(self, memory: Memory, regions: Sequence[int]) -> None:
        """Raise `ActorLost` if a process is gone, or if Ray reports a member as dead. This check also records a heartbeat.

        A member that waits often does not check often: each check reads a file of each process.
        """
        self._actor_context.alive()
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _PROCESS_CHECK_INTERVAL_S
        for region, name in zip(regions, self._members.names, strict=True):
            pid, started = memory.region(region).words[PID : STARTED + 1]
            if is_gone((pid, started)):
                raise self._members.lose_to_death(name)
        if now_s - self._checked_s > DEATH_CHECK_INTERVAL_S:
            self._members.check_for_deaths()
            self._checked_s = now_s
