"""Plateau schedules: the driver reduces learning rates after evaluations without improvement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.training.optimizers.schedule import Schedule


class Plateaus:
    """Counts evaluations for those schedules that are plateaus, and sets their reduction.

    Parameters
    ----------
    schedules : the driver's schedules; the others are not changed.
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._schedules = [schedule for schedule in schedules if schedule.decay == "plateau"]
        self._waited, self._cuts = [0] * len(self._schedules), [0] * len(self._schedules)
        self._best: list[float | None] = [None] * len(self._schedules)
        self._reduce()

    def evaluated(self, value: float, *, falls: bool) -> bool:
        """Count an evaluation with this metric, which improves if it ``falls``, or rises; return whether a rate was reduced."""
        before = [schedule.reduction[0] for schedule in self._schedules]
        for i, schedule in enumerate(self._schedules):
            improved = _improves(value, self._best[i], schedule, falls=falls)
            if improved:
                self._best[i] = value
            self._waited[i] = 0 if improved else self._waited[i] + 1
            if self._waited[i] >= schedule.patience:
                self._waited[i], self._cuts[i] = 0, self._cuts[i] + 1
        self._reduce()
        return before != [schedule.reduction[0] for schedule in self._schedules]

    def state(self) -> dict[str, Any]:
        """Return the evaluations since the last improvement or reduction, the reductions, and the best metric, by schedule."""
        return {"waited": list(self._waited), "cuts": list(self._cuts), "best": list(self._best)}

    def restore(self, state: Mapping[str, Any], best: float | None = None) -> None:
        """Restore what `state` returned; an empty state, or a state of other schedules, means the start of a run.

        ``best`` is the best metric of the run, for states of older versions, which do not hold it.
        """
        none = [0] * len(self._schedules)
        fits = len(state.get("cuts", ())) == len(none)
        self._waited, self._cuts = ([*state[key]] if fits and state else [*none] for key in ("waited", "cuts"))
        self._best = list(state.get("best", [best] * len(none))) if fits and state else [None] * len(none)
        self._reduce()

    def _reduce(self) -> None:
        for schedule, cuts in zip(self._schedules, self._cuts, strict=True):
            schedule.reduce(max(schedule.factor**cuts, schedule.final))


def _improves(value: float, best: float | None, schedule: Schedule, *, falls: bool) -> bool:
    """Return whether a metric is better than the best one by more than the threshold, as torch's ``is_better``."""
    if best is None or math.isnan(value):
        return not math.isnan(value)
    sign = -1 if falls else 1
    if schedule.threshold_mode == "rel":
        return sign * value > sign * best * (1 + sign * schedule.threshold)
    return sign * value > sign * (best + sign * schedule.threshold)
