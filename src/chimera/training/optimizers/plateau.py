"""Plateau schedules: the driver reduces learning rates after evaluations without improvement."""

from __future__ import annotations

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
        self._reduce()

    def evaluated(self, *, improved: bool) -> bool:
        """Count an evaluation; return whether a learning rate was reduced."""
        before = [schedule.reduction[0] for schedule in self._schedules]
        for i, schedule in enumerate(self._schedules):
            self._waited[i] = 0 if improved else self._waited[i] + 1
            if self._waited[i] >= schedule.patience:
                self._waited[i], self._cuts[i] = 0, self._cuts[i] + 1
        self._reduce()
        return before != [schedule.reduction[0] for schedule in self._schedules]

    def state(self) -> dict[str, Any]:
        """Return the evaluations since the last improvement or reduction, and the number of reductions, by schedule."""
        return {"waited": list(self._waited), "cuts": list(self._cuts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; an empty state, or one of other schedules, is that of a run's start."""
        none = [0] * len(self._schedules)
        fits = len(state.get("cuts", ())) == len(none)
        self._waited, self._cuts = ([*state[key]] if fits and state else [*none] for key in ("waited", "cuts"))
        self._reduce()

    def _reduce(self) -> None:
        for schedule, cuts in zip(self._schedules, self._cuts, strict=True):
            schedule.reduce(max(schedule.factor**cuts, schedule.final))
