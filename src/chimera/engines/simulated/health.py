"""Disturbances of an actor in virtual time: hangs, cuts and slow periods, but not deaths."""

from __future__ import annotations

import math

from chimera.core.engine import Disturbance


class Health:
    """The disturbances of one actor. The object is immutable: all undisturbed actors share one.

    Attributes
    ----------
    hung_s : start time of a hang or cut without end; infinite if there is none.
    sound : whether the actor was never disturbed and is not a client. The methods need not be called then.
    """

    def __init__(self) -> None:
        self.hung_s = math.inf
        self.sound = True
        self._pauses: list[tuple[float, float]] = []  # in the order of their starts: the driver's clock never goes back
        self._cuts: list[tuple[float, float]] = []
        self._slow: list[tuple[float, float, float]] = []

    def under(self, disturbance: Disturbance, now_s: float) -> Health:
        """Return the health after a disturbance that begins now and ends the current one."""
        then, hung = Health(), [(self.hung_s, now_s)] if self.hung_s < now_s else []
        then.sound = False
        then._pauses, then._cuts = _until([*self._pauses, *hung], now_s), _until(self._cuts, now_s)
        then._slow = [(begin_s, min(end_s, now_s), factor) for begin_s, end_s, factor in self._slow]
        span = now_s, now_s + disturbance.for_s
        if disturbance.what == "slow":
            then._slow.append((*span, disturbance.factor))
        elif span[1] == math.inf:
            then.hung_s = now_s
        else:
            then._pauses.append(span)
            if disturbance.what == "cut off":
                then._cuts.append(span)
        return then

    def begins_s(self, time_s: float) -> float:
        """Return the start time of work that is ready at ``time_s``."""
        return math.inf if time_s >= self.hung_s else _after(self._pauses, time_s)

    def sends_s(self, time_s: float) -> float:
        """Return the send time of a value that is ready at ``time_s``. As on real engines, a hang does not delay sending."""
        return _after(self._cuts, time_s)

    def ends_s(self, begin_s: float, work_s: float) -> float:
        """Return the end of ``work_s`` seconds of work that begins at ``begin_s``, prolonged in slow periods."""
        for slow_s, over_s, factor in self._slow:
            if slow_s <= begin_s < over_s:
                if work_s <= (over_s - begin_s) / factor:
                    return begin_s + factor * work_s
                begin_s, work_s = over_s, work_s - (over_s - begin_s) / factor
        return begin_s + work_s

    def silent_since_s(self, now_s: float) -> float:
        """Return the time of the last heartbeat of an actor that is silent now, else infinity."""
        begun_s = [begin_s for begin_s, end_s in self._pauses if begin_s <= now_s < end_s]
        return min([self.hung_s, *begun_s])


def _until(spans: list[tuple[float, float]], now_s: float) -> list[tuple[float, float]]:
    return [(begin_s, min(end_s, now_s)) for begin_s, end_s in spans]


def _after(spans: list[tuple[float, float]], time_s: float) -> float:
    for begin_s, end_s in spans:
        if begin_s <= time_s < end_s:
            time_s = end_s
    return time_s


UNDISTURBED = Health()
"""The health of an actor that was never disturbed."""

CLIENT = Health()
"""The health of an undisturbed client. It is not `sound`, because the presence of the client matters."""
CLIENT.sound = False
