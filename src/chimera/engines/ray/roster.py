"""The record of spawned, placed and dead actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from chimera.engines.ray.refs import Lane
from chimera.engines.ray.rendezvous import living_actors
from chimera.engines.ray.shared import Side

_LOOK_FOR_DEATHS_S = 0.1
"""Minimum interval of requests to Ray, in seconds; a request costs about 0.4 ms."""
_LOOK_FOR_PLACES_S = 0.1


class Roster:
    """The actors of an engine.

    Parameters
    ----------
    give_back : releases the place of a dead actor.

    Attributes
    ----------
    lanes : the records of all actors, by rank.
    deaths : the records of dead actors, in the order in which their deaths became known.
    """

    def __init__(self, give_back: Callable[[Any], None]) -> None:
        self.lanes: list[Lane] = []
        self.deaths: list[Lane] = []
        self._give_back = give_back
        self._by_ray_id: dict[str, Lane] = {}
        self._unplaced: list[Lane] = []
        self._looked_s = 0.0
        self._arriving: list[Lane] = []  # their location is not known yet
        self._far: list[Lane] = []
        self._sought_s = 0.0
        self._ending: list[Side] = []  # dead, but not cleaned up completely

    def add(self, lane: Lane) -> None:
        """Record one more actor."""
        self.lanes.append(lane)
        self._by_ray_id[lane.handle._actor_id.hex()] = lane
        self._unplaced.append(lane)
        self._arriving.append(lane)

    @property
    def far(self) -> bool:
        """Whether a living actor is known to be on a machine that cannot map the driver's memory."""
        if self._arriving and time.monotonic() - self._sought_s > _LOOK_FOR_PLACES_S:
            placed = [lane for lane in self._arriving if _has_place(lane)]
            self._arriving = [lane for lane in self._arriving if lane not in placed]
            self._far += [lane for lane in placed if not lane.is_near]
            self._sought_s = time.monotonic()
        if self._far:
            self._far = [lane for lane in self._far if not lane.is_near and lane.died_s is None]
        return bool(self._far)

    def unplaced(self) -> list[Lane]:
        """Return the records of living actors that have not created their object yet."""
        if self._unplaced:
            self._unplaced = [lane for lane in self._unplaced if not _has_place(lane)]
        return self._unplaced

    def look_for_deaths(self, at_once: bool = False) -> None:
        """Request the dead actors from Ray, unless that was done a moment ago."""
        if not at_once and time.monotonic() - self._looked_s < _LOOK_FOR_DEATHS_S:
            return
        living = living_actors()
        for lane in self.lanes:
            if lane.key not in living:
                self.note_death(lane)
        self._ending = [side for side in self._ending if not side.clear()]
        self._looked_s = time.monotonic()

    def note_death(self, lane: Lane) -> None:
        """Record the death of an actor, once."""
        if lane.died_s is None:
            lane.died_s = time.monotonic()
            if lane.side is not None:
                self._ending.append(lane.side)
            self.deaths.append(lane)
            self._give_back(lane.seat)
            lane.seat = None

    def name_of_dead(self, ray_id: str) -> str | None:
        """Return the name of an actor that Ray reported as dead or unreachable, and record its death."""
        import ray

        lane = self._by_ray_id.get(ray_id)
        if lane is None:
            return None
        if lane.died_s is None:
            ray.kill(lane.handle)  # an actor that was only unreachable must not come back
            self.note_death(lane)
        return lane.name


def _has_place(lane: Lane) -> bool:
    import ray

    if lane.made is None:
        return False  # it is being spawned
    if lane.placed or lane.died_s is not None or not lane.calls:
        return True
    done, _ = ray.wait([lane.calls[0].row], timeout=0)
    return bool(done)
