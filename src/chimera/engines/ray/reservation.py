"""Reservation of room for actors in the cluster: all of it or none. Log lines report what a reservation waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chimera.core.engine import Resources
from chimera.core.errors import TimeLimitError
from chimera.engines.ray.refs import Lane

Placement = Literal["pack", "spread"]

_log = logging.getLogger("chimera.engines.ray")
_FIRST_WORD_S = 2.0
"""Seconds of waiting before a log line reports what is missing."""
_ASK_EVERY_S = 1.0
"""Ray accepts whole seconds here and treats less as none; each request costs its head node about 18 kB."""
_LOOK_S = 0.05
_AT_ONCE_S = 1.0
"""Seconds that Ray may take to assign free room."""


@dataclass(frozen=True)
class Seat:
    """The place of one actor in a placement group."""

    group: Any
    index: int
    resources: Resources


class Reservations:
    """The reservations of the engine, and their free places.

    Parameters
    ----------
    cpus_per_actor : number of CPUs of an actor; None: as many as it has threads.
    placement : whether actors are placed on few nodes or on many.
    timeout_s : seconds to wait for room.
    """

    def __init__(self, cpus_per_actor: float | None, placement: Placement, timeout_s: float) -> None:
        self._cpus_per_actor, self._placement, self._timeout_s = cpus_per_actor, placement, timeout_s
        self._groups: list[list[Seat]] = []
        self._free: list[Seat] = []
        self._left: list[Seat] = []  # free places whose actor is dead

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Reserve room for all these actors, or raise and reserve none.

        With a ``timeout_s``, places of dead actors count too, once they are ready: Ray moves those of a lost node. With 0,
        nothing is logged while there is no room. Without a time limit, reservations whose actors are all dead are released
        first: their run is over, and an engine may serve many runs.

        Raises
        ------
        TimeLimitError : the cluster had no room in time; the error states the requested and the free resources.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        what = f"{len(resources)} actors"
        if timeout_s is not None:
            resources = self._without_places(resources, timeout_s, what)
        else:
            self._give_up_the_deserted()
        bundles = [bundle for r in resources if (bundle := self.bundle(r))]
        if not bundles:
            return
        if timeout_s == 0 and not _fits(bundles):
            raise TimeLimitError(f"the cluster cannot hold {what} now: {asked_and_free(bundles)}")
        limit_s = timeout_s or (self._timeout_s if timeout_s is None else _AT_ONCE_S)
        group = placement_group(bundles, strategy=self._placement.upper())
        began_s = time.monotonic()
        try:
            if not group.wait(max(min(_FIRST_WORD_S, limit_s), _ASK_EVERY_S)):
                if timeout_s != 0:
                    _log.warning("waiting for room for %s: %s", what, asked_and_free(bundles))
                while not group.wait(_ASK_EVERY_S):
                    if time.monotonic() - began_s > limit_s:
                        raise TimeLimitError(_no_room(what, limit_s, bundles))
        except BaseException:
            remove_placement_group(group)
            raise
        with_bundle = [r for r in resources if self.bundle(r)]
        self._groups.append([Seat(group, index, r) for index, r in enumerate(with_bundle)])
        self._free += self._groups[-1]

    def take(self, resources: Resources) -> Seat | None:
        """Return a free reserved place for such an actor, or None; a ready place before one that Ray must move."""
        seat = _best(resources, self._free)
        if seat is not None:
            self._free.remove(seat)
            if seat in self._left:
                self._left.remove(seat)
        return seat

    def give_back(self, seat: Seat | None) -> None:
        """Make the place of a dead actor available to the next actor of the kind."""
        if seat is not None:
            self._free.append(seat)
            self._left.append(seat)

    def options(self, resources: Resources, seat: Seat | None) -> dict[str, Any]:
        """Return the options with which Ray places such an actor."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self.bundle(resources)
        options: dict[str, Any] = {"num_cpus": bundle.pop("CPU", 0.0), "num_gpus": bundle.pop("GPU", 0.0)}
        if "memory" in bundle:
            options["memory"] = bundle.pop("memory")
        options["resources"] = bundle
        if seat is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(seat.group, seat.index)
        elif self._placement == "spread":
            options["scheduling_strategy"] = "SPREAD"
        return options

    def bundle(self, resources: Resources) -> dict[str, float]:
        """Return Ray's resources for one actor."""
        cpus = float(resources.threads) if self._cpus_per_actor is None else self._cpus_per_actor
        memory = (resources.memory_mb or 0.0) * 1e6
        amounts = {"CPU": cpus, "GPU": resources.gpus, "memory": memory, **resources.custom}
        return {name: amount for name, amount in amounts.items() if amount}

    def check_unplaced(self, waiting: Sequence[Lane]) -> None:
        """Raise if one of these actors has waited too long for room; an actor with a ready reserved place has room.

        Raises
        ------
        TimeLimitError : the error states the requested and the free resources.
        """
        before_s = time.monotonic() - self._timeout_s
        late = [lane for lane in waiting if lane.spawned_s < before_s and not (lane.seat and _stands(lane.seat))]
        if late:
            bundles = [self.bundle(lane.resources) for lane in late]
            raise TimeLimitError(_no_room(", ".join(lane.name for lane in late), self._timeout_s, bundles))

    def close(self) -> None:
        """Release all room."""
        from ray.util.placement_group import remove_placement_group

        for seats in self._groups:
            remove_placement_group(seats[0].group)
        self._groups, self._free, self._left = [], [], []

    def _give_up_the_deserted(self) -> None:
        """Release the reservations of which all actors are dead."""
        from ray.util.placement_group import remove_placement_group

        deserted = [seats for seats in self._groups if all(seat in self._left for seat in seats)]
        for seats in deserted:
            remove_placement_group(seats[0].group)
            self._groups.remove(seats)
            self._free = [seat for seat in self._free if seat not in seats]
            self._left = [seat for seat in self._left if seat not in seats]

    def _without_places(self, resources: Sequence[Resources], timeout_s: float, what: str) -> list[Resources]:
        """Return the actors without a free place; the free places must become ready in time."""
        left, missing, deadline = list(self._free), [], time.monotonic() + timeout_s
        for each in resources:
            seat = _best(each, left)
            if seat is None:
                missing.append(each)
                continue
            left.remove(seat)
            while not _stands(seat):
                if time.monotonic() >= deadline:
                    raise TimeLimitError(f"the places of {what} do not stand: {asked_and_free([self.bundle(each)])}")
                time.sleep(_LOOK_S)
        return missing


def _best(resources: Resources, free: Sequence[Seat]) -> Seat | None:
    seats = [seat for seat in free if seat.resources == resources]
    return next((seat for seat in seats[:-1] if _stands(seat)), seats[-1] if seats else None)


def _stands(seat: Seat) -> bool:
    """Whether the place is on a node, and not being moved from a lost one."""
    from ray.util import placement_group_table

    return bool(placement_group_table(seat.group)["bundles_to_node_id"][seat.index])


def _no_room(what: str, limit_s: float, bundles: Sequence[Mapping[str, float]]) -> str:
    return f"the cluster could not hold {what} within {limit_s:g} s: {asked_and_free(bundles)}"


def asked_and_free(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return a text with the requested resources and how many are free."""
    import ray

    names = dict.fromkeys(["CPU", "GPU", "memory", *(name for bundle in bundles for name in bundle)])
    free, total = ray.available_resources(), ray.cluster_resources()
    asked = [_amount(name, f"{_number(name, sum(b.get(name, 0.0) for b in bundles))}") for name in names]
    left = [
        _amount(name, f"{_number(name, free.get(name, 0.0))} of {_number(name, total.get(name, 0.0))}")
        for name in names
    ]
    return f"asked {', '.join(asked)}; free {', '.join(left)}"


def _fits(bundles: Sequence[Mapping[str, float]]) -> bool:
    """Whether the nodes have room for all, by Ray's last report; each actor takes the first node with room."""
    from ray._private.state import available_resources_per_node

    nodes: list[dict[str, float]] = [dict(free) for free in available_resources_per_node().values()]
    for bundle in bundles:
        node = next((n for n in nodes if all(n.get(name, 0.0) >= bundle[name] for name in bundle)), None)
        if node is None:
            return False
        for name, amount in bundle.items():
            node[name] -= amount
    return True


def _number(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f}" if name == "memory" else f"{amount:g}"


def _amount(name: str, number: str) -> str:
    return f"{number} {'GiB memory' if name == 'memory' else name + 's' if name in ('CPU', 'GPU') else name}"
