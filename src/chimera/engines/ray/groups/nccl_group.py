"""Groups of Ray actors with a GPU each: collectives over nccl, messages over TCP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.engines.collectives import Costs, Op, check_root, check_sizes, flat_of, scale_of
from chimera.engines.ray.groups.connections import Connections
from chimera.engines.ray.groups.nccl_link import NO_TIMEOUT, NcclLink, c10d
from chimera.engines.ray.groups.rendezvous import DEATH_CHECK_INTERVAL_S, Members
from chimera.engines.ray.groups.tcp_group import TcpGroup


class NcclGroup(TcpGroup):
    """A group inside one of its members.

    Parameters
    ----------
    costs : the engine object of this actor, which counts costs.
    members : the members.
    connect : connects them for messages; called when they first send or receive.
    link : connects them for collectives; called when they first meet.
    """

    def __init__(
        self, costs: Costs, members: Members, connect: Callable[[], Connections], link: Callable[[], NcclLink]
    ) -> None:
        super().__init__(costs, members, connect)
        self._members, self._connect_link = members, link
        self._link: NcclLink | None = None
        self._agreed_sizes: set[int] = set()  # lengths of former vectors

    def barrier(self) -> None:
        """Return when all members have arrived."""
        if self.size == 1:
            return
        with self._meeting() as link:
            options = c10d().BarrierOptions()
            options.timeout = NO_TIMEOUT
            self._await(link, link.group.barrier(options))

    def all_reduce(self, array: NDArray[np.float32], op: Op = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits."""
        flat, scale = flat_of(array), scale_of(op, self.size)
        self._agree_size(flat.size)
        if flat.size == 0:
            self.barrier()
        elif self.size == 2:
            self._add_two(flat)
        elif self.size > 2:
            self._add_in_rank_order(flat)
        if scale != 1:
            np.multiply(flat, np.float32(scale), out=flat)  # as on the other engines, for the same bits
        self._costs.collective_bytes += 2 * flat.nbytes * (self.size - 1) // self.size
        return array

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Fill ``array`` with the array of member ``root``, in place."""
        check_root(root, self.size)
        flat = flat_of(array)
        self._agree_size(flat.size)
        if self.size == 1 or flat.size == 0:
            self.barrier()
            return array
        with self._meeting() as link:
            options = c10d().BroadcastOptions()
            options.rootRank, options.timeout = root, NO_TIMEOUT
            tensor = link.tensor(flat)
            self._await(link, link.group.broadcast([tensor], options))
            link.bring(tensor, flat)
        if self._rank != root:
            self._costs.collective_bytes += flat.nbytes
        return array

    def _agree_size(self, size: int) -> None:
        """Exchange the lengths of the members' vectors, if a vector has a new length.

        nccl does not check them. An exchange each time would cost a round trip.
        """
        if self.size == 1 or size in self._agreed_sizes:
            return
        with self._meeting() as link:
            own = link.tensor(np.array([size], np.int64))
            sizes = own.new_empty(self.size)
            options = c10d().AllgatherOptions()
            options.timeout = NO_TIMEOUT
            self._await(link, link.group._allgather_base(sizes, own, options))
            found = sizes.tolist()
        check_sizes(found)
        self._agreed_sizes.add(size)

    def _add_two(self, flat: NDArray[np.float32]) -> None:
        """Add with torch's own all-reduce: with two members, either order gives the same bits."""
        with self._meeting() as link:
            options = c10d().AllreduceOptions()
            options.timeout = NO_TIMEOUT
            tensor = link.tensor(flat)
            self._await(link, link.group.allreduce([tensor], options))
            link.bring(tensor, flat)

    def _add_in_rank_order(self, flat: NDArray[np.float32]) -> None:
        """Give each member one slice of all vectors, add it there in rank order, and share the sums.

        A ring moves as much data, but starts each slice at another rank, and so adds in another order.
        """
        with self._meeting() as link:
            own = link.tensor(flat)
            width = -(-flat.size // self.size)
            mine = own.new_zeros(width * self.size)
            mine[: flat.size] = own
            slices = own.new_empty(self.size, width)
            exchange = c10d().AllToAllOptions()
            exchange.timeout = NO_TIMEOUT
            self._await(link, link.group.alltoall_base(slices.view(-1), mine, [], [], exchange))
            total = slices[0]
            for other in slices[1:]:
                total += other
            share = c10d().AllgatherOptions()
            share.timeout = NO_TIMEOUT
            self._await(link, link.group._allgather_base(mine, total, share))
            link.bring(mine[: flat.size], flat)

    @contextmanager
    def _meeting(self) -> Iterator[NcclLink]:
        """Yield the connected group, and translate errors after the death of a member to `ActorLost`."""
        members = self._members
        began_s = time.monotonic()
        self._costs.alive()
        try:
            if self._link is None:
                self._link = self._connect_link()
            yield self._link
        except RuntimeError as error:  # errors of torch and of the store
            raise members.lose_to_break(error) from error
        finally:
            if members.lost is not None and self._link is not None:  # no member must wait for this one, either
                self._link.end()
                self._link = None
            self._costs.waited_s += time.monotonic() - began_s

    def _await(self, link: NcclLink, work: Any) -> None:
        """Wait for all members, and check repeatedly whether they are alive."""
        while not link.done(work, DEATH_CHECK_INTERVAL_S):
            self._members.check_for_deaths()
