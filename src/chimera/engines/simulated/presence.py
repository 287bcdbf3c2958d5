"""The times at which a client is connected: its presence, which is known in advance."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from chimera.core.errors import ConfigurationError

Intervals: TypeAlias = Iterable[tuple[float, float]]
"""The start and end times of the intervals in which a client is on, in order."""

_MAX_INTERVALS = 10_000_000
_MAX_RESTARTS = 10


class Presence:
    """The intervals in which a client is on; otherwise it is off: it computes nothing, and no message reaches or leaves it.

    Intervals are read when they are first needed, because there may be many clients, and no last interval.

    Parameters
    ----------
    name : name of the client, for errors.
    intervals : starts the sequence of its intervals.
    restarts : whether a call that is interrupted starts again when the client returns, instead of continuing.

    Attributes
    ----------
    ends_s : when the last interval ends; infinite unless the client leaves for good.
    """

    __slots__ = ("_bounds_s", "_intervals", "_start", "ends_s", "name", "restarts")

    def __init__(
        self,
        name: str,
        intervals: Callable[[], Intervals],
        *,
        restarts: bool = False,
        ends_s: float = math.inf,
    ) -> None:
        self.name, self.restarts, self.ends_s = name, restarts, ends_s
        self._start = intervals
        self._intervals: Iterator[tuple[float, float]] | None = None
        self._bounds_s: list[float] = []  # begin and end of each known interval in turn

    def is_on(self, time_s: float) -> bool:
        """Return whether the client is on; at the end of an interval it is off."""
        return self._place(time_s) % 2 == 1

    def begins_s(self, time_s: float) -> float:
        """Return the first time from ``time_s`` at which the client is on; infinite if it does not return."""
        if time_s == math.inf:
            return time_s
        place = self._place(time_s)
        if place % 2 == 1:
            return time_s
        return self._bounds_s[place] if place < len(self._bounds_s) else math.inf

    def works_until_s(self, begin_s: float, work_s: float, call_s: float) -> float:
        """Return the end of ``work_s`` seconds of work that begin at ``begin_s``, with all absences in between.

        Parameters
        ----------
        call_s : when the call began. If calls restart, all work since then is repeated after an absence. After some restarts,
            the call continues instead, so that each call ends.
        """
        if work_s == 0:
            return begin_s  # work may end exactly when the client goes off
        if not self.restarts:
            return self._passed_s(begin_s, work_s)
        begin_s = self.begins_s(begin_s)
        if begin_s == math.inf:
            return begin_s
        place = self._place(begin_s)
        again_s = begin_s - max(call_s, self._bounds_s[place - 1]) + work_s
        if begin_s + work_s <= self._bounds_s[place]:
            return begin_s + work_s
        for _ in range(_MAX_RESTARTS):
            begin_s = self.begins_s(self._bounds_s[place])
            if begin_s == math.inf:
                return begin_s
            place = self._place(begin_s)
            if begin_s + again_s <= self._bounds_s[place]:
                return begin_s + again_s
        return self._passed_s(begin_s, again_s)

    def arrives_s(self, ready_s: float, arrival_s: float) -> float:
        """Return the end of a transfer that would take from ``ready_s`` to ``arrival_s`` without absences.

        A value that is in flight when the client leaves for good still arrives.
        """
        through_s = self._passed_s(ready_s, arrival_s - ready_s)
        return arrival_s if through_s == math.inf else through_s

    def leaves_s(self, time_s: float) -> float:
        """Return when a value that is ready at ``time_s`` leaves the client: at once if the client does not return."""
        begin_s = self.begins_s(time_s)
        return time_s if begin_s == math.inf else begin_s

    def _passed_s(self, begin_s: float, lasts_s: float) -> float:
        """Return when the client has been on for ``lasts_s`` since ``begin_s``."""
        if lasts_s == math.inf:
            return lasts_s
        begin_s = self.begins_s(begin_s)
        while begin_s < math.inf:
            off_s = self._bounds_s[self._place(begin_s)]
            if begin_s + lasts_s <= off_s:
                return begin_s + lasts_s
            lasts_s -= off_s - begin_s
            begin_s = self.begins_s(off_s)
        return begin_s

    def _place(self, time_s: float) -> int:
        """Return the number of borders until ``time_s``. The interval that contains it, or the next one, is then known."""
        borders_s = self._bounds_s
        if not borders_s or borders_s[-1] <= time_s:
            if self._intervals is None:
                self._intervals = _merged(self._start())
            for interval in self._intervals:
                borders_s += interval
                if interval[1] > time_s:
                    break
                if len(borders_s) > 2 * _MAX_INTERVALS:
                    raise ConfigurationError(
                        f"{self.name} is on in more than {_MAX_INTERVALS} intervals before {time_s:g} s: lengthen them"
                    )
        return bisect_right(borders_s, time_s)


def _merged(intervals: Intervals) -> Iterator[tuple[float, float]]:
    """Yield intervals with adjacent ones as one, and without empty ones."""
    begin_s, end_s = -1.0, -1.0
    for on_s, off_s in intervals:
        if off_s <= on_s:
            continue
        if on_s <= end_s:
            end_s = max(end_s, off_s)
            continue
        if end_s >= 0:
            yield begin_s, end_s
        begin_s, end_s = on_s, off_s
    if end_s >= 0:
        yield begin_s, end_s
