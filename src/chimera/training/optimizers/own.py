"""The optimizer that a model brings (`OwnOptimizer`), as the table of an experiment: schedulers become schedules."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.core.optimizer_table import optimizer_table
from chimera.models.own_optimizer import OwnOptimizer, RunLength
from chimera.training.progress.budget import smaller_is_better

_ENTRIES = 1000  # of a table; a longer schedule is sampled at this number of steps


class Suggestion(NamedTuple):
    """The table of an optimizer, and the metric that its schedule monitors; None: the metric of the run."""

    table: dict[str, Any]
    monitor: str | None


def suggestion(own: OwnOptimizer, length: RunLength) -> Suggestion:
    """Return name, options and schedule of a model's own optimizer, for a run of this length.

    Any scheduler becomes the table of its learning rates, by epoch or by step, and `ReduceLROnPlateau` becomes a plateau.

    Raises
    ------
    ConfigurationError : the groups of parameters differ in their options; the scheduler also changes other options than the
        learning rate, or needs the length of the run, which is not known; or a plateau has options that a run does not support.
    """
    groups = own.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    if own.scheduler is not None:
        for group in groups:
            group["lr"] = group.get("initial_lr", group["lr"])  # the scheduler has set the rate of the first step
    table = optimizer_table(own.optimizer, {})
    if ":" not in table["name"]:
        table["name"] = table["name"].lower()
    if own.scheduler is None:
        return Suggestion(table, None)
    if hasattr(own.scheduler, "num_bad_epochs"):
        return Suggestion({**table, "schedule": _plateau(own, table["lr"])}, own.monitor)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    schedule = _table(own, table["lr"], length)
    return Suggestion(table if schedule is None else {**table, "schedule": schedule}, None)


def _plateau(own: OwnOptimizer, rate: float) -> dict[str, Any]:
    scheduler: Any = own.scheduler
    if scheduler.cooldown or own.interval != "epoch":
        raise ConfigurationError(
            "ReduceLROnPlateau with a cooldown, or with interval 'step', is not supported: a run counts evaluations without "
            "improvement, see evaluate_every"
        )
    if len(set(scheduler.min_lrs)) > 1:
        raise ConfigurationError(
            "ReduceLROnPlateau has different min_lr for groups of parameters: a run steps all parameters alike"
        )
    falls = scheduler.mode == "min"
    if own.monitor is not None and falls != smaller_is_better(own.monitor):
        raise ConfigurationError(
            f"ReduceLROnPlateau has mode {scheduler.mode!r}, but for a run {own.monitor!r} improves when it "
            f"{'rises' if falls else 'falls'}: monitor a metric whose name ends in loss or error if it falls"
        )
    # torch reduces the rate after one more than ``patience`` evaluations
    patience = (scheduler.patience + 1) * own.frequency
    return {
        "decay": "plateau",
        "factor": scheduler.factor,
        "patience": patience,
        "final": min(scheduler.min_lrs) / rate,
        "threshold": scheduler.threshold,
        "threshold_mode": scheduler.threshold_mode,
    }


def _table(own: OwnOptimizer, rate: float, length: RunLength) -> dict[str, Any] | None:
    """Return the factors of the learning rate that a scheduler sets; None if all are 1."""
    name, by_step = type(own.scheduler).__name__, own.interval == "step"
    span = length.steps if by_step else length.epochs
    if span is None:
        raise ConfigurationError(
            f"the scheduler {name} needs the length of the run: set epochs or rounds, or schedule of the run's optimizer"
        )
    if not rate > 0:
        raise ConfigurationError(f"the scheduler {name} needs an optimizer with a learning rate above 0, not {rate}")
    count = max(math.ceil(span / own.frequency - 1e-9), 1)
    factors = _factors(own, rate, count)
    if len(set(factors)) == 1 and factors[0] == 1.0:
        return None
    if count > _ENTRIES:
        sampled = [factors[i * count // _ENTRIES] for i in range(_ENTRIES)]
        return {"decay": "table", "factors": sampled, "every": 1 / _ENTRIES}
    every: float = own.frequency if by_step else min(own.frequency / span, 1)
    return {"decay": "table", "factors": factors, "every": every}


def _factors(own: OwnOptimizer, rate: float, count: int) -> list[float]:
    """Return the first ``count`` learning rates that the scheduler sets, divided by ``rate``."""
    groups, factors = own.optimizer.param_groups, []
    group = groups[0]
    options = _others(group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no optimizer steps between the steps of the scheduler
        for place in range(count):
            if place:
                own.scheduler.step()
            factors.append(float(group["lr"]) / rate)
            if any(other["lr"] != group["lr"] for other in groups[1:]):
                raise ConfigurationError(
                    f"the scheduler {type(own.scheduler).__name__} sets different rates for groups of parameters: a run steps "
                    "all parameters alike"
                )
            if (changed := _others(group)) != options:  # each time, since a cycle ends where it began
                option = next(key for key, value in changed.items() if value != options[key])
                raise ConfigurationError(
                    f"the scheduler {type(own.scheduler).__name__} also changes {option!r}: a run changes the learning rate "
                    "only; turn this off, for example by cycle_momentum=False"
                )
    return factors


def _others(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "lr")}
