"""Groups of actors on ranks: collectives in rank order, and messages, as exchanges between pairs of members.

A member waits in its own thread, without the messenger of its rank. The library would choose the order of MPI_Allreduce. Here
each member adds a part of all vectors in the order of the members. All members thus get the same bits (decisions/0068). The
pair of members is part of each message's tag, because several members may be on one rank.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ActorLost
from chimera.core.parameters import reduce_in_order, shard_bounds
from chimera.core.pickling import marshalled, unmarshalled
from chimera.engines.collectives import Op, check_count, check_ranks, check_root, check_sizes, flat_of, scale_of
from chimera.engines.mpi import transfers
from chimera.engines.mpi.calls import Peer
from chimera.engines.mpi.context import MpiContext
from chimera.engines.mpi.library import MPI
from chimera.engines.mpi.values import Kept
from chimera.engines.mpi.wake_ups import Pause, word_of
from chimera.engines.shared_memory.values import Packed, opened

_POLL_S = 5e-5  # seconds of polling before the first sleep: other members often arrive within this time
_NEAR_S = 0.05
_MOVING_S = 1e-3
_LATE_MESSAGE_S = 0.2  # messages of a member of another machine may arrive after the notice of its death


def lost_member(members: Sequence[Peer], dead: Mapping[int, str]) -> str:
    """Return the name of a dead member; empty if there is none."""
    return next((member.name for member in members if member.actor in dead), "") if dead else ""


def max_members_per_rank(members: Sequence[Peer]) -> int:
    """Return the largest number of members that one rank hosts."""
    ranks = [member.rank for member in members]
    return max(map(ranks.count, ranks), default=1)


class MpiGroup:
    """A group inside one of its members, which are on several machines, or cannot share memory."""

    def __init__(self, context: MpiContext, first_tag: int, members: Sequence[Peer]) -> None:
        self._context, self._members = context, members
        self._rank = [member.actor for member in members].index(context.actor)
        self._messenger, self._dead = context.rank.messenger, context.rank.dead
        self._others = [rank for rank in range(len(members)) if rank != self._rank]
        self._near = all(self._messenger.wake_ups.near(member.rank) for member in members)
        ranks = [member.rank for member in members]
        slots = [ranks[:i].count(rank) for i, rank in enumerate(ranks)]
        places, own = max_members_per_rank(members), slots[self._rank]
        self._tags_to = [first_tag + own * places + slot for slot in slots]
        self._tags_from = [first_tag + slot * places + own for slot in slots]
        channel = self._messenger.group_messages
        self._incoming = [
            transfers.Incoming(channel, member.rank, tag, reuse=True)
            for member, tag in zip(members, self._tags_from, strict=True)
        ]
        self._arrived: list[list[tuple[int, Any, int]]] = [[] for _ in members]
        self._numbers = itertools.count()
        self._scratch = np.empty(0, np.float32)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    def barrier(self) -> None:
        """Return when all members have arrived."""
        self._agree(0)

    def all_reduce(self, array: NDArray[np.float32], op: Op = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits."""
        flat, scale = flat_of(array), scale_of(op, self.size)
        self._agree(flat.size)
        if self.size == 2:
            self._reduce_two(flat, scale)
        elif self.size > 2:
            self._reduce_parts(flat, scale)
        self._context.collective_bytes += 2 * flat.nbytes * (self.size - 1) // self.size
        return array

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Copy ``array`` of member ``root`` to all members, in place; through a tree of members."""
        check_root(root, self.size)
        flat = flat_of(array)
        self._agree(flat.size)
        place, step = (self._rank - root) % self.size, 1  # in a binomial tree with the root in place 0
        while step < self.size and not place & step:
            step *= 2
        if place:
            self._complete([self._begin_receive((place - step + root) % self.size, flat)])
            self._context.collective_bytes += flat.nbytes
        children = [place + step // 2**i for i in range(1, step.bit_length())]
        requests = [self._begin_send((c + root) % self.size, flat) for c in children if c < self.size]
        self._ring([(c + root) % self.size for c in children if c < self.size])
        self._complete(requests)
        return array

    def send(self, values: Mapping[int, Any]) -> None:
        """Send a value to each of these members. See `Group.send`."""
        check_ranks(list(values), self.size)
        self._context.alive()
        packed: dict[int, Packed] = {}  # by the id of the value, which may have many receivers
        requests: list[Any] = []
        for rank, value in values.items():
            if id(value) not in packed:
                packed[id(value)] = Packed(value)
                self._context.sent_bytes += packed[id(value)].array_bytes  # counted once, like the result of a call
            each = packed[id(value)]
            self._incoming[rank].release()
            if rank == self._rank:
                self._arrived[rank].append((next(self._numbers), Kept.of(value).open(), 0))
                continue
            text = marshalled((each.form, bytes(each.stream)))
            with self._messenger.lock:
                tag, to = self._tags_to[rank], self._members[rank].rank
                requests += transfers.send(self._messenger.group_messages, to, tag, text, each.buffers)
        self._ring(values)
        with self._messenger.lock:
            done = MPI.Request.Testall(requests)
        if not done:
            self._messenger.complete(requests)

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """Wait for the next value of each of these members. See `Group.receive`."""
        check_ranks(members, self.size)
        count = check_count(members, count)
        others = [rank for rank in members if rank != self._rank]

        def enough() -> bool:
            for rank in others:
                with self._messenger.lock:
                    message = self._incoming[rank].poll()
                if message is not None:
                    form, stream = unmarshalled(message.text)
                    value = opened(form, stream, message.buffers)
                    nbytes = sum(buffer.nbytes for buffer in message.buffers)
                    self._arrived[rank].append((next(self._numbers), value, nbytes))
            return sum(1 for rank in members if self._arrived[rank]) >= count

        arriving = functools.partial(self._are_arriving, others)
        self._wait(enough, arriving, arriving)
        there = sorted((self._arrived[rank][0][0], rank) for rank in members if self._arrived[rank])
        chosen = {rank for _, rank in there[:count]}
        found = {}
        for rank in members:
            if rank in chosen:
                _, found[rank], nbytes = self._arrived[rank].pop(0)
                self._context.received_bytes += nbytes
        return found

    def _agree(self, size: int) -> None:
        """Exchange the lengths of the members' vectors. Each collective begins with this; it also is the barrier."""
        sizes = np.full(self.size, size, np.int64)
        requests = [self._begin_receive(rank, sizes[rank : rank + 1]) for rank in self._others]
        own = sizes[self._rank : self._rank + 1]
        requests += [self._begin_send(rank, own) for rank in self._others]
        self._ring(self._others)
        self._complete(requests, moving=False)
        check_sizes(sizes.tolist())

    def _reduce_two(self, flat: NDArray[np.float32], scale: float) -> None:
        """Exchange whole vectors: half as many steps as `_reduce_parts`, with as many bytes."""
        other = self._others[0]
        theirs = self._memory(flat.size)
        requests = [self._begin_receive(other, theirs), self._begin_send(other, flat)]
        self._ring([other])
        self._complete(requests)
        np.add(*((flat, theirs) if self._rank == 0 else (theirs, flat)), out=flat)
        if scale != 1:
            np.multiply(flat, np.float32(scale), out=flat)

    def _reduce_parts(self, flat: NDArray[np.float32], scale: float) -> None:
        """Add a part of all vectors, and exchange the sums."""
        bounds = shard_bounds(flat.size, self.size)
        parts = [flat[begin:end] for begin, end in itertools.pairwise(bounds)]
        length = parts[self._rank].size
        memory = self._memory(length * self.size)
        vectors = [memory[length * i : length * (i + 1)] for i in range(self.size)]
        requests = [self._begin_receive(rank, vectors[rank]) for rank in self._others]
        requests += [self._begin_send(rank, parts[rank]) for rank in self._others]
        self._ring(self._others)
        self._complete(requests)
        total, vectors[self._rank] = vectors[self._rank], parts[self._rank]
        parts[self._rank][:] = reduce_in_order(vectors, total, scale)
        requests = [self._begin_receive(rank, parts[rank]) for rank in self._others]
        requests += [self._begin_send(rank, parts[self._rank]) for rank in self._others]
        self._ring(self._others)
        self._complete(requests)

    def _memory(self, size: int) -> NDArray[np.float32]:
        if self._scratch.size < size:
            self._scratch = self._context.empty(size)
        return self._scratch[:size]

    def _begin_send(self, rank: int, array: NDArray[Any]) -> Any:
        with self._messenger.lock:
            data = [array.view(np.uint8), MPI.BYTE]
            return self._messenger.collectives.Isend(data, self._members[rank].rank, self._tags_to[rank])

    def _begin_receive(self, rank: int, array: NDArray[Any]) -> Any:
        with self._messenger.lock:
            data = [array.view(np.uint8), MPI.BYTE]
            return self._messenger.collectives.Irecv(data, self._members[rank].rank, self._tags_from[rank])

    def _ring(self, ranks: Sequence[int] | Mapping[int, Any]) -> None:
        for rank in ranks:
            member = self._members[rank]
            if rank != self._rank:
                self._messenger.wake_ups.wake(member.rank, word_of(member.actor))

    def _complete(self, requests: list[Any], *, moving: bool = True) -> None:
        """Wait until requests are complete; cancel them if a member is dead.

        Parameters
        ----------
        moving : whether the messages may be so large that they need calls of both sides.
        """
        try:
            self._wait(lambda: self._all_complete(requests), lambda: moving)
        except BaseException:
            with self._messenger.lock:
                for request in requests:
                    if request != MPI.REQUEST_NULL:
                        request.Cancel()
                        request.Free()
            raise

    def _all_complete(self, requests: list[Any]) -> bool:
        with self._messenger.lock:
            return bool(MPI.Request.Testall(requests))

    def _are_arriving(self, ranks: Sequence[int]) -> bool:
        """Return whether a value has begun to arrive. Its rank sends the rest, also if its actor is dead."""
        return any(self._incoming[rank].busy for rank in ranks)

    def _wait(
        self, done: Callable[[], bool], moving: Callable[[], bool], arriving: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until ``done``; raise `ActorLost` if a death prevents it.

        Parameters
        ----------
        moving : whether a message is in flight, which needs calls of both sides.
        arriving : whether it will be complete in spite of a death.
        """
        context, wake_ups = self._context, self._messenger.wake_ups
        context.alive()
        if done():
            return
        began_s = time.monotonic()
        pause, end_s = Pause(), None
        poll_until_s = began_s + _POLL_S
        try:
            while True:
                seen = wake_ups.seen(context.word)
                if done():
                    return
                context.alive()
                now_s = time.monotonic()
                if lost := lost_member(self._members, self._dead):
                    end_s = end_s or now_s + (_POLL_S if self._near else _LATE_MESSAGE_S)
                    if now_s >= end_s and not arriving():
                        raise ActorLost(f"{lost} died, and its group with it")
                if now_s >= poll_until_s and (end_s is None or arriving()):
                    sleep_s = _NEAR_S if self._near and not moving() else _MOVING_S
                    if wake_ups.sleep(context.word, seen, pause.next_s(sleep_s)):
                        pause.reset()
                        poll_until_s = time.monotonic() + _POLL_S  # the library may need several probes
        finally:
            context.waited_s += time.monotonic() - began_s
