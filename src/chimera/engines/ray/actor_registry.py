"""The record of spawned, placed and dead actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from chimera.engines.ray.groups.rendezvous import living_actors
from chimera.engines.ray.refs import Channel
from chimera.engines.ray.shared import Side

_DEATH_CHECK_INTERVAL_S = 0.1
"""Minimum interval of requests to Ray, in seconds; a request costs about 0.4 ms."""
_PLACEMENT_CHECK_INTERVAL_S = 0.1


class ActorRegistry:
    """The actors of an engine.

    Parameters
    ----------
    give_back : releases the place of a dead actor.

    Attributes
    ----------
    channels : the records of all actors, by rank.
    deaths : the records of dead actors, in the order in which their deaths became known.
    """

    def __init__(self, give_back: Callable[[Any], None]) -> None:
        self.channels: list[Channel] = []
        self.deaths: list[Channel] = []
        self._give_back = give_back
        self._by_ray_id: dict[str, Channel] = {}
        self._unplaced: list[Channel] = []
        self._checked_s = 0.0
        self._arriving: list[Channel] = []  # their location is not known yet
        self._far: list[Channel] = []
        self._placement_checked_s = 0.0
        self._ending: list[Side] = []  # dead, but not cleaned up completely

    def add(self, channel: Channel) -> None:
        """Record one more actor."""
        self.channels.append(channel)
        self._by_ray_id[channel.handle._actor_id.hex()] = channel
        self._unplaced.append(channel)
        self._arriving.append(channel)

    @property
    def far(self) -> bool:
        """Whether a living actor is known to be on a machine that cannot map the driver's memory."""
        if self._arriving and time.monotonic() - self._placement_checked_s > _PLACEMENT_CHECK_INTERVAL_S:
            placed = [channel for channel in self._arriving if _has_place(channel)]
            self._arriving = [channel for channel in self._arriving if channel not in placed]
            self._far += [channel for channel in placed if not channel.is_near]
            self._placement_checked_s = time.monotonic()
        if self._far:
            self._far = [channel for channel in self._far if not channel.is_near and channel.died_s is None]
        return bool(self._far)

    def unplaced(self) -> list[Channel]:
        """Return the records of living actors that have not created their object yet."""
        if self._unplaced:
            self._unplaced = [channel for channel in self._unplaced if not _has_place(channel)]
        return self._unplaced

    def check_for_deaths(self, at_once: bool = False) -> None:
        """Request the dead actors from Ray, unless the last request is too recent."""
        if not at_once and time.monotonic() - self._checked_s < _DEATH_CHECK_INTERVAL_S:
            return
        living = living_actors()
        for channel in self.channels:
            if channel.key not in living:
                self.note_death(channel)
        self._ending = [side for side in self._ending if not side.clear()]
        self._checked_s = time.monotonic()

    def note_death(self, channel: Channel) -> None:
        """Record the death of an actor, once."""
        if channel.died_s is None:
            channel.died_s = time.monotonic()
            if channel.side is not None:
                self._ending.append(channel.side)
            self.deaths.append(channel)
            self._give_back(channel.reserved_place)
            channel.reserved_place = None

    def name_of_dead(self, ray_id: str) -> str | None:
        """Return the name of an actor that Ray reported as dead or unreachable, and record its death."""
        import ray

        channel = self._by_ray_id.get(ray_id)
        if channel is None:
            return None
        if channel.died_s is None:
            ray.kill(channel.handle)  # an actor that was only unreachable must not come back
            self.note_death(channel)
        return channel.name


def _has_place(channel: Channel) -> bool:
    import ray

    if channel.made is None:
        return False  # it is being spawned
    if channel.placed or channel.died_s is not None or not channel.calls:
        return True
    done, _ = ray.wait([channel.calls[0].row], timeout=0)
    return bool(done)
