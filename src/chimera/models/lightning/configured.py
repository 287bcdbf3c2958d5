"""The optimizer and the scheduler that ``configure_optimizers`` of a Lightning module returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.models.own_optimizer import OwnOptimizer, check_complete


def own_optimizer(returned: Any, module: Any) -> OwnOptimizer | None:
    """Return the one optimizer that ``configure_optimizers`` returned, with its scheduler; None if it returned None.

    Raises
    ------
    ConfigurationError : there are several optimizers or schedulers, the value has none of Lightning's forms, or the
        optimizer lacks trainable parameters.
    """
    name = type(module).__name__
    if returned is None:
        return None
    optimizers, schedulers, monitor = _parts(returned)
    if len(optimizers) > 1:
        raise ConfigurationError(
            f"configure_optimizers of {name} returns {len(optimizers)} optimizers: a run steps all parameters by one; return "
            "one, or set the run's optimizer and return None"
        )
    if len(schedulers) > 1:
        raise ConfigurationError(
            f"configure_optimizers of {name} returns {len(schedulers)} schedulers: join them in one, such as "
            "torch.optim.lr_scheduler.SequentialLR"
        )
    if not optimizers or not hasattr(optimizers[0], "param_groups"):
        raise ConfigurationError(
            f"configure_optimizers of {name} returns {type(returned).__name__}: return an optimizer, or a mapping with "
            "'optimizer' and 'lr_scheduler'"
        )
    check_complete(optimizers[0], module, f"the optimizer of {name}")
    return _with_scheduler(optimizers[0], schedulers[0] if schedulers else None, monitor, name)


def _parts(returned: Any) -> tuple[list[Any], list[Any], str | None]:
    """Return optimizers, schedulers, and the metric that is monitored."""
    if isinstance(returned, Mapping):
        scheduler = returned.get("lr_scheduler")
        optimizer = returned.get("optimizer")
        return (
            [] if optimizer is None else [optimizer],
            [] if scheduler is None else [scheduler],
            returned.get("monitor"),
        )
    if not isinstance(returned, list | tuple):
        return [returned], [], None
    if len(returned) == 2 and isinstance(returned[0], list | tuple):
        schedulers = returned[1] if isinstance(returned[1], list | tuple) else [returned[1]]
        return list(returned[0]), list(schedulers), None
    each = [_parts(part) for part in returned]
    optimizers = [optimizer for part in each for optimizer in part[0]]
    return optimizers, [scheduler for part in each for scheduler in part[1]], each[0][2] if each else None


def _with_scheduler(optimizer: Any, given: Any, monitor: str | None, name: str) -> OwnOptimizer:
    table = given if isinstance(given, Mapping) else {"scheduler": given}
    interval, frequency = table.get("interval", "epoch"), table.get("frequency", 1)
    if interval not in ("epoch", "step") or not isinstance(frequency, int) or frequency < 1:
        raise ConfigurationError(
            f"the scheduler of {name} has interval {interval!r} and frequency {frequency!r}: interval is 'epoch' or 'step', "
            "frequency a number of at least 1"
        )
    scheduler = table.get("scheduler")
    if given is not None and (
        not hasattr(scheduler, "step") or getattr(scheduler, "optimizer", optimizer) is not optimizer
    ):
        raise ConfigurationError(
            f"the scheduler of {name} is {type(scheduler).__name__}: give a scheduler of torch.optim.lr_scheduler, of the "
            "optimizer that configure_optimizers returns"
        )
    return OwnOptimizer(optimizer, scheduler, interval, frequency, table.get("monitor", monitor))
