"""Waits of the driver. Only waits advance the driver's clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chimera.core.errors import RunError, TimeLimitError
from chimera.engines.simulated.call import Ref
from chimera.engines.simulated.delivery import deliver
from chimera.engines.simulated.node import Node
from chimera.engines.simulated.scheduler import Scheduler


class DriverWaits:
    """The driver's waits.

    Parameters
    ----------
    scheduler : holds the clock.
    driver : the node of the driver, which receives the values.
    """

    def __init__(self, scheduler: Scheduler, driver: Node) -> None:
        self._scheduler, self._driver = scheduler, driver

    def wait(self, refs: list[Ref], count: int, timeout_s: float | None) -> tuple[list[Ref], list[Ref]]:
        """See `Engine.wait`. The driver learns of the end of a call one network latency later."""
        count = min(count, len(refs))
        deadline_s = self._deadline_s(timeout_s)
        times_s = self._known_times_s(refs, count, deadline_s)
        if count > 0:
            enough_s = _smallest(times_s, count)
            if min(enough_s, deadline_s) == math.inf:
                raise self._deadlock(refs)
            self._scheduler.now_s = max(self._scheduler.now_s, min(enough_s, deadline_s))
        now_s = self._scheduler.now_s
        places = sorted((i for i, time_s in enumerate(times_s) if time_s <= now_s), key=times_s.__getitem__)
        return [refs[i] for i in places], [ref for ref, time_s in zip(refs, times_s, strict=True) if time_s > now_s]

    def fetch(self, refs: Sequence[Ref], timeout_s: float | None) -> list[Any]:
        """See `Engine.get`. The transfer of each value to the driver is simulated."""
        scheduler, deadline_s = self._scheduler, self._deadline_s(timeout_s)
        began_s = scheduler.now_s
        self._known_times_s(refs, len(refs), deadline_s)
        deliver(
            [ref for ref in refs if ref.stored and not ref.call.error and ref.call.end_s < math.inf],
            self._driver,
            began_s,
        )
        values = []
        for ref in refs:
            call = ref.call
            arrives_s = call.known_s  # an arrival recorded before the call was delayed is no longer valid
            if call.error is None:
                arrives_s = max(arrives_s, ref.arrivals.get(self._driver, arrives_s))
            if arrives_s > deadline_s:
                scheduler.now_s = deadline_s
                raise TimeLimitError(f"{call.method!r} of {call.node.name} did not end within {timeout_s} s")
            if arrives_s == math.inf:
                raise self._deadlock([ref])
            scheduler.now_s = max(scheduler.now_s, arrives_s)
            if call.error is not None:
                raise call.error.with_traceback(None)
            values.append(ref.open())
        return values

    def _deadline_s(self, timeout_s: float | None) -> float:
        return math.inf if timeout_s is None else self._scheduler.now_s + max(0.0, timeout_s)

    def _known_times_s(self, refs: Sequence[Ref], count: int, deadline_s: float) -> list[float]:
        """Process the events before the end of the wait; return when the driver learns that each ref is done."""
        events = self._scheduler.events
        events.catch_up()
        while True:
            times_s = [ref.call.known_s for ref in refs]
            if count <= 0 or max(times_s) < math.inf:
                return times_s
            lost_s, node = self._scheduler.next_loss()
            next_s = events.next_s()
            if min(lost_s, next_s) == math.inf or min(lost_s, next_s) > min(_smallest(times_s, count), deadline_s):
                return times_s
            if next_s <= lost_s:
                events.step()
            else:
                self._scheduler.lose(node, lost_s)

    def _deadlock(self, refs: Sequence[Ref]) -> RunError:
        call = next(ref.call for ref in refs if ref.call.end_s == math.inf)
        return RunError(f"this would wait forever: {self._scheduler.explain(call)}")


def _smallest(times_s: Sequence[float], count: int) -> float:
    """Return the ``count``-th smallest time."""
    return min(times_s) if count == 1 else max(times_s) if count == len(times_s) else sorted(times_s)[count - 1]
