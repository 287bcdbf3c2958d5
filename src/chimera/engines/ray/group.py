"""Collectives between Ray actors, through torch.distributed; they meet through Ray's key-value store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.errors import ActorLost, ConfigurationError
from chimera.engines.ray.host import RaySurroundings
from chimera.engines.ray.link import FOR_EVER, Link, c10d, connect
from chimera.engines.ray.pulse import NAMESPACE

_LOOK_FOR_DEATHS_S = 0.5
_KNOWN_WITHIN_S = 3.0


class GroupHandle:
    """A group as the driver holds it. Travels as an argument; inside a member it becomes a `RayGroup`.

    Parameters
    ----------
    key : what tells this group from others.
    members : the key and the name of each, in rank order.
    """

    def __init__(self, key: str, members: Sequence[tuple[str, str]]) -> None:
        self._key, self._members = key, tuple(members)

    @property
    def size(self) -> int:
        """How many members."""
        return len(self._members)

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (self._key, self._members)


def _join(key: str, members: tuple[tuple[str, str], ...]) -> RayGroup | GroupHandle:
    surroundings = call._surroundings
    if not isinstance(surroundings, RaySurroundings):
        return GroupHandle(key, members)
    if key not in surroundings.groups:
        surroundings.groups[key] = RayGroup(surroundings, key, members)
    group: RayGroup = surroundings.groups[key]
    return group


class RayGroup:
    """A group inside one of its members."""

    def __init__(self, surroundings: RaySurroundings, key: str, members: tuple[tuple[str, str], ...]) -> None:
        keys = [member for member, _ in members]
        if surroundings.me not in keys:
            raise ConfigurationError("this actor is not a member of the group it was given")
        self._surroundings, self._key, self._members = surroundings, key, members
        self._rank = keys.index(surroundings.me)
        self._link: Link | None = None
        self._lost: str | None = None

    @property
    def size(self) -> int:
        """How many members."""
        return len(self._members)

    def barrier(self) -> None:
        """Return when all members have arrived."""
        if self.size == 1:
            return
        with self._meeting() as link:
            options = c10d().BarrierOptions()
            options.timeout = FOR_EVER
            self._await(link, link.group.barrier(options))

    def all_reduce(self, array: NDArray[np.float32], op: Literal["mean", "sum"] = "mean") -> NDArray[np.float32]:
        """Reduce in place over all members, in rank order; every member gets the same bits."""
        flat = _flat(array)
        if flat.size == 0:
            self.barrier()
        elif self.size == 2:
            self._add_two(flat)
        elif self.size > 2:
            self._add_in_rank_order(flat)
        if op == "mean":
            np.multiply(flat, np.float32(1 / self.size), out=flat)  # as the other engines do it: the same bits
        self._surroundings.collective_bytes += 2 * flat.nbytes * (self.size - 1) // self.size
        return array

    def broadcast(self, array: NDArray[np.float32], root: int = 0) -> NDArray[np.float32]:
        """Fill ``array`` with that of member ``root``, in place."""
        flat = _flat(array)
        if self.size == 1 or flat.size == 0:
            self.barrier()
            return array
        with self._meeting() as link:
            options = c10d().BroadcastOptions()
            options.rootRank, options.timeout = root, FOR_EVER
            tensor = link.tensor(flat)
            self._await(link, link.group.broadcast([tensor], options))
            link.bring(tensor, flat)
        if self._rank != root:
            self._surroundings.collective_bytes += flat.nbytes
        return array

    def _add_two(self, flat: NDArray[np.float32]) -> None:
        """Add with torch's own all-reduce: of two members, either order gives the same bits."""
        with self._meeting() as link:
            options = c10d().AllreduceOptions()
            options.timeout = FOR_EVER
            tensor = link.tensor(flat)
            self._await(link, link.group.allreduce([tensor], options))
            link.bring(tensor, flat)

    def _add_in_rank_order(self, flat: NDArray[np.float32]) -> None:
        """Give each member one slice of all vectors, add it there in rank order, and share the sums.

        A ring moves as much, but starts each slice at another rank, and so adds in another order.
        """
        with self._meeting() as link:
            own = link.tensor(flat)
            width = -(-flat.size // self.size)
            mine = own.new_zeros(width * self.size)
            mine[: flat.size] = own
            slices = own.new_empty(self.size, width)
            exchange = c10d().AllToAllOptions()
            exchange.timeout = FOR_EVER
            self._await(link, link.group.alltoall_base(slices.view(-1), mine, [], [], exchange))
            total = slices[0]
            for other in slices[1:]:
                total += other
            share = c10d().AllgatherOptions()
            share.timeout = FOR_EVER
            self._await(link, link.group._allgather_base(mine, total, share))
            link.bring(mine[: flat.size], flat)

    @contextmanager
    def _meeting(self) -> Iterator[Link]:
        """Give the connected group, and turn what the death of a member causes into `ActorLost`."""
        if self._lost is not None:
            raise ActorLost(self._lost)
        began_s = time.monotonic()
        self._surroundings.alive()
        try:
            if self._link is None:
                self._link = connect(_store(self._key, self._look_for_deaths), self._rank, self.size)
            yield self._link
        except RuntimeError as error:  # what torch and the store raise
            deadline = time.monotonic() + _KNOWN_WITHIN_S
            while time.monotonic() < deadline:
                self._look_for_deaths()
                time.sleep(0.05)
            self._lost = f"a group of {self.size} actors broke apart: {error}"
            raise ActorLost(self._lost) from error
        finally:
            if self._lost is not None and self._link is not None:  # nobody is to wait for this member either
                self._link.end()
                self._link = None
            self._surroundings.waited_s += time.monotonic() - began_s

    def _await(self, link: Link, work: Any) -> None:
        """Wait for all members, and look from time to time whether they live."""
        while not link.done(work, _LOOK_FOR_DEATHS_S):
            self._look_for_deaths()

    def _look_for_deaths(self) -> None:
        """Raise `ActorLost` if a member is dead; looking is a sign of life."""
        self._surroundings.alive()
        living = living_actors()
        for key, name in self._members:
            if key not in living:
                self._lost = f"{name} died, and its group with it"
                raise ActorLost(self._lost)


def _store(prefix: str, look_for_deaths: Callable[[], None]) -> Any:
    """Return a store for a rendezvous in Ray's key-value store; who waits in it looks for deaths."""
    from ray.experimental import internal_kv

    base: Any = c10d().Store

    class KeyValueStore(base):  # type: ignore[misc]  # torch is imported late
        def set(self, key: str, value: bytes | str) -> None:
            internal_kv._internal_kv_put(f"{prefix}/{key}", value, namespace=NAMESPACE)

        def get(self, key: str) -> bytes:
            pause_s, looked_s = 0.001, time.monotonic()
            while (value := internal_kv._internal_kv_get(f"{prefix}/{key}", namespace=NAMESPACE)) is None:
                if time.monotonic() - looked_s > _LOOK_FOR_DEATHS_S:
                    look_for_deaths()
                    looked_s = time.monotonic()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.02)
            return bytes(value)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002 - it ends with a death
            for key in keys:
                self.get(key)

    return KeyValueStore()


def living_actors() -> set[str]:
    """Return the keys of all actors of this job that Ray does not know to be dead."""
    from ray.util import list_named_actors

    return set(list_named_actors())


def _flat(array: NDArray[np.float32]) -> NDArray[np.float32]:
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise ConfigurationError("a collective needs a contiguous float32 array that can be written to")
    return array.reshape(-1)
