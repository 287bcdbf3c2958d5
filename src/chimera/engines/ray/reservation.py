"""Reservation of room for actors in the cluster: all of it or none. Log lines report what a reservation waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chimera.core.engine import Resources
from chimera.core.errors import TimeLimitError
from chimera.engines.ray.refs import Channel

Placement = Literal["pack", "spread"]

_log = logging.getLogger("chimera.engines.ray")
_FIRST_WORD_S = 2.0
"""Seconds of waiting before a log line reports what is missing."""
_ASK_EVERY_S = 1.0
"""Ray accepts whole seconds here and treats less as none; each request costs its head node about 18 kB."""
_CHECK_INTERVAL_S = 0.05
_AT_ONCE_S = 1.0
"""Seconds that Ray may take to assign free room."""


@dataclass(frozen=True)
class ReservedPlace:
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
        self._groups: list[list[ReservedPlace]] = []
        self._free: list[ReservedPlace] = []
        self._left: list[ReservedPlace] = []  # free places whose actor is dead

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
            self._release_unused()
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
                        raise TimeLimitError(_out_of_resources(what, limit_s, bundles))
        except BaseException:
            remove_placement_group(group)
            raise
        with_bundle = [r for r in resources if self.bundle(r)]
        self._groups.append([ReservedPlace(group, index, r) for index, r in enumerate(with_bundle)])
        self._free += self._groups[-1]

    def take(self, resources: Resources) -> ReservedPlace | None:
        """Return a free reserved place for such an actor, or None; a ready place before one that Ray must move."""
        reserved_place = _best(resources, self._free)
        if reserved_place is not None:
            self._free.remove(reserved_place)
            if reserved_place in self._left:
                self._left.remove(reserved_place)
        return reserved_place

    def give_back(self, reserved_place: ReservedPlace | None) -> None:
        """Make the place of a dead actor available to the next actor of the kind."""
        if reserved_place is not None:
            self._free.append(reserved_place)
            self._left.append(reserved_place)

    def options(self, resources: Resources, reserved_place: ReservedPlace | None) -> dict[str, Any]:
        """Return the options with which Ray places such an actor."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self.bundle(resources)
        options: dict[str, Any] = {"num_cpus": bundle.pop("CPU", 0.0), "num_gpus": bundle.pop("GPU", 0.0)}
        if "memory" in bundle:
            options["memory"] = bundle.pop("memory")
        options["resources"] = bundle
        if reserved_place is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                reserved_place.group, reserved_place.index
            )
        elif self._placement == "spread":
            options["scheduling_strategy"] = "SPREAD"
        return options

    def bundle(self, resources: Resources) -> dict[str, float]:
        """Return Ray's resources for one actor."""
        cpus = float(resources.threads) if self._cpus_per_actor is None else self._cpus_per_actor
        memory = (resources.memory_mb or 0.0) * 1e6
        amounts = {"CPU": cpus, "GPU": resources.gpus, "memory": memory, **resources.custom}
        return {name: amount for name, amount in amounts.items() if amount}

    def check_unplaced(self, waiting: Sequence[Channel]) -> None:
        """Raise if one of these actors has waited too long for room; an actor with a ready reserved place has room.

        Raises
        ------
        TimeLimitError : the error states the requested and the free resources.
        """
        before_s = time.monotonic() - self._timeout_s
        late = [
            channel
            for channel in waiting
            if channel.spawned_s < before_s and not (channel.reserved_place and _stands(channel.reserved_place))
        ]
        if late:
            bundles = [self.bundle(channel.resources) for channel in late]
            raise TimeLimitError(
                _out_of_resources(", ".join(channel.name for channel in late), self._timeout_s, bundles)
            )

    def close(self) -> None:
        """Release all room."""
        from ray.util.placement_group import remove_placement_group

        for reserved_places in self._groups:
            remove_placement_group(reserved_places[0].group)
        self._groups, self._free, self._left = [], [], []

    def _release_unused(self) -> None:
        """Release the reservations of which all actors are dead."""
        from ray.util.placement_group import remove_placement_group

        unused = [
            reserved_places
            for reserved_places in self._groups
            if all(reserved_place in self._left for reserved_place in reserved_places)
        ]
        for reserved_places in unused:
            remove_placement_group(reserved_places[0].group)
            self._groups.remove(reserved_places)
            self._free = [reserved_place for reserved_place in self._free if reserved_place not in reserved_places]
            self._left = [reserved_place for reserved_place in self._left if reserved_place not in reserved_places]

    def _without_places(self, resources: Sequence[Resources], timeout_s: float, what: str) -> list[Resources]:
        """Return the actors without a free place; the free places must become ready in time."""
        left, missing, deadline = list(self._free), [], time.monotonic() + timeout_s
        for each in resources:
            reserved_place = _best(each, left)
            if reserved_place is None:
                missing.append(each)
                continue
            left.remove(reserved_place)
            while not _stands(reserved_place):
                if time.monotonic() >= deadline:
                    raise TimeLimitError(f"the places of {what} are not ready: {asked_and_free([self.bundle(each)])}")
                time.sleep(_CHECK_INTERVAL_S)
        return missing


def _best(resources: Resources, free: Sequence[ReservedPlace]) -> ReservedPlace | None:
    reserved_places = [reserved_place for reserved_place in free if reserved_place.resources == resources]
    return next(
        (reserved_place for reserved_place in reserved_places[:-1] if _stands(reserved_place)),
        reserved_places[-1] if reserved_places else None,
    )


def _stands(reserved_place: ReservedPlace) -> bool:
    """Whether the place is on a node, and not being moved from a lost one."""
    from ray.util import placement_group_table

    return bool(placement_group_table(reserved_place.group)["bundles_to_node_id"][reserved_place.index])


def _out_of_resources(what: str, limit_s: float, bundles: Sequence[Mapping[str, float]]) -> str:
    return f"the cluster could not hold {what} within {limit_s:g} s: {asked_and_free(bundles)}"


def asked_and_free(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return a text with the requested resources and how many are free."""
    import ray

    names = dict.fromkeys(["CPU", "GPU", "memory", *(name for bundle in bundles for name in bundle)])
    free, total = ray.available_resources(), ray.cluster_resources()
    requested = [_amount(name, f"{_number(name, sum(b.get(name, 0.0) for b in bundles))}") for name in names]
    left = [
        _amount(name, f"{_number(name, free.get(name, 0.0))} of {_number(name, total.get(name, 0.0))}")
        for name in names
    ]
    return f"requested {', '.join(requested)}; free {', '.join(left)}"


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
