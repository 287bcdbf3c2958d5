"""Groups of Ray actors that do not share memory: collectives and messages over the members' own connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import reduce_in_order, shard_bounds
from chimera.engines.collectives import Costs, Op, check_root, check_sizes, flat_of, scale_of
from chimera.engines.ray.groups.connections import Connections
from chimera.engines.ray.groups.frames import Step
from chimera.engines.ray.groups.rendezvous import Members

Vector: TypeAlias = NDArray[np.float32]

_PIECE = 1 << 17  # elements that are sent, received and added at a time
_AHEAD = 4  # pieces that a member sends before the first piece of the others has arrived
_NOTHING = np.empty(0, np.float32)


class TcpGroup:
    """A group inside one of its members.

    A collective begins with an empty part from each member to each other one, which describes the collective. Two members then
    exchange their vectors. More members send one slice to each member, which adds the slices in rank order and sends the sum
    to all (reduce-scatter and all-gather without a ring). A part takes one latency of the network: it needs no request.

    Parameters
    ----------
    costs : the engine object of this actor, which counts costs.
    members : the members.
    connect : connects them; called when they first meet.
    """

    def __init__(self, costs: Costs, members: Members, connect: Callable[[], Connections]) -> None:
        self._costs, self._connect, self._rank = costs, connect, members.rank
        self.size = members.size
        self._others = [rank for rank in range(self.size) if rank != self._rank]
        self._connected: Connections | None = None
        self._begun = self._agreed = 0  # number of the last collective; of the last one that the members agreed on
        self._described: dict[int, int] = {}  # ends of the last description, see `Connections.post`
        self._shared: dict[int, int] = {}  # ends of the last piece that this member shared
        self._partial = np.empty(_PIECE, np.float32)

    def barrier(self) -> None:
        """Return when all members have arrived."""
        self._agree(self._begin("barrier", "", 0))

    def all_reduce(self, array: Vector, op: Op = "mean") -> Vector:
        """Reduce in place over all members, in rank order; every member gets the same bits.

        Raises
        ------
        ConfigurationError : the members ask for different collectives, or have vectors of unequal sizes.
        ActorLost : a member died.
        """
        flat, scale = flat_of(array), scale_of(op, self.size)
        step = self._begin("all_reduce", op, flat.size)
        slices = self._slices(flat)
        given = {rank: slices[rank] for rank in self._others}
        for index, arrived in self._exchange(step, given, self._others, _pieces(slices)):
            piece = _cut(slices[self._rank], index)
            vectors = [*arrived[: self._rank], piece, *arrived[self._rank :]]
            np.copyto(piece, reduce_in_order(vectors, self._partial[: piece.size], scale))
            self._share(step, slices, index, self._others, self._others)
        self._finish(step, slices, self._others)
        self._costs.collective_bytes += 2 * flat.nbytes * (self.size - 1) // self.size
        return array

    def broadcast(self, array: Vector, root: int = 0) -> Vector:
        """Fill ``array`` with the array of member ``root``, in place. Errors are those of `all_reduce`.

        With more than two members, the root sends one slice to each, and they share the slices.
        """
        check_root(root, self.size)
        flat, is_root = flat_of(array), self._rank == root
        step = self._begin("broadcast", int(root), flat.size)
        slices = self._slices(flat)
        given = {rank: slices[rank] for rank in self._others} if is_root else {}
        receivers, sources = [rank for rank in self._others if rank != root], [] if is_root else self._others
        for index, arrived in self._exchange(step, given, [] if is_root else [root], _pieces(slices)):
            for piece in arrived:
                np.copyto(_cut(slices[self._rank], index), piece)
            self._share(step, slices, index, receivers, sources)
        self._finish(step, slices, sources)
        if not is_root:
            self._costs.collective_bytes += flat.nbytes
        return array

    def send(self, values: Mapping[int, Any]) -> None:
        """See `Connections.send`."""
        self._connections().send(values)

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """See `Group.receive`."""
        return self._connections().receive(members, count)

    def close(self) -> None:
        """End the connections."""
        if self._connected is not None:
            self._connected.close()

    def _connections(self) -> Connections:
        if self._connected is None:
            began_s = time.monotonic()
            try:
                self._connected = self._connect()
            finally:
                self._costs.waited_s += time.monotonic() - began_s
        return self._connected

    def _slices(self, flat: Vector) -> list[Vector]:
        """Return the part of a vector that each member reduces. Of two members, each reduces all of it."""
        if self.size == 2:
            return [flat, flat]
        return [flat[begin:end] for begin, end in pairwise(shard_bounds(flat.size, self.size))]

    def _begin(self, name: str, detail: str | int, size: int) -> Step:
        """Describe the next collective to the other members."""
        self._begun += 2  # the shared pieces have the next number
        step = self._begun, name, detail, size
        if self._others:
            self._described = self._connections().post(dict.fromkeys(self._others, _NOTHING), step)
        return step

    def _agree(self, step: Step) -> None:
        """Wait for the descriptions of the other members; raise `ConfigurationError` unless they are equal to this one."""
        if self._agreed == step[0] or not self._others:
            return
        self._connections().sent(self._described)  # else it could stay behind the parts of a failed collective
        steps = [part.step or step for part in self._connections().parts(self._others, step[0])]
        steps.insert(self._rank, step)
        if len({(name, detail) for _, name, detail, _ in steps}) > 1:
            asked = ", ".join(f"rank {rank}: {name} {detail}" for rank, (_, name, detail, _) in enumerate(steps))
            raise ConfigurationError(f"the members of a group do not ask for the same: {asked}")
        check_sizes([size for *_, size in steps])
        self._agreed = step[0]

    def _exchange(
        self, step: Step, given: Mapping[int, Vector], sources: Sequence[int], count: int
    ) -> Iterator[tuple[int, list[Vector]]]:
        """Send vectors to other members in pieces; yield the index of each piece, and that piece of each source.

        When an index is yielded, these pieces of the given vectors have been sent, so they may change.

        Parameters
        ----------
        step : the collective.
        given : the vector for each receiver.
        sources : the members that send a vector to this one.
        count : number of pieces of each vector; the last ones can be empty.
        """
        ends: list[dict[int, int]] = []
        for index in range(count):
            while len(ends) < min(index + _AHEAD, count):
                parts = {rank: _cut(vector, len(ends)) for rank, vector in given.items()}
                ends.append(self._connections().post(parts, step))
            self._agree(step)
            arrived = self._connections().parts(sources, step[0])
            self._connections().sent(ends[index])
            yield index, [part.value for part in arrived]
            self._connections().reuse(arrived)
        self._agree(step)

    def _share(
        self, step: Step, slices: Sequence[Vector], index: int, receivers: Sequence[int], sources: Sequence[int]
    ) -> None:
        """Send a piece of this member's slice, without waiting, and write an earlier piece of the other slices.

        Of two members, each has the whole vector already.
        """
        if self.size > 2:
            parts = dict.fromkeys(receivers, _cut(slices[self._rank], index))
            self._shared = self._connections().post(parts, (step[0] + 1, *step[1:]))
            if index >= _AHEAD:
                self._collect(step, slices, index - _AHEAD, sources)

    def _collect(self, step: Step, slices: Sequence[Vector], index: int, sources: Sequence[int]) -> None:
        arrived = self._connections().parts(sources, step[0] + 1)
        for rank, part in zip(sources, arrived, strict=True):
            np.copyto(_cut(slices[rank], index), part.value)
        self._connections().reuse(arrived)

    def _finish(self, step: Step, slices: Sequence[Vector], sources: Sequence[int]) -> None:
        """Write the last pieces of the other slices, and wait until those of this member have been sent."""
        if self.size > 2:
            count = _pieces(slices)
            for index in range(max(count - _AHEAD, 0), count):
                self._collect(step, slices, index, sources)
            self._connections().sent(self._shared)


def _pieces(slices: Sequence[Vector]) -> int:
    """Return the number of pieces of the longest slice."""
    return -(-max(part.size for part in slices) // _PIECE)


def _cut(vector: Vector, index: int) -> Vector:
    """Return a piece of a vector; it is empty after the end."""
    return vector[index * _PIECE : (index + 1) * _PIECE]
