"""Values that a run and a model exchange: the position of a step, the length of the run, and an optimizer of the model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from chimera.core.errors import ConfigurationError


class Position(NamedTuple):
    """The position of a step in a run, each number counted from 0.

    Attributes
    ----------
    rank : of the worker.
    step : number of the worker's batch since the start of the run.
    epoch, batch : of this step: the epoch, and the number of the batch in it.
    """

    rank: int = 0
    step: int = 0
    epoch: int = 0
    batch: int = 0


class RunLength(NamedTuple):
    """The length of a run: steps of its optimizer, and passes over the training data; None if it is not known in advance."""

    steps: int | None
    epochs: float | None


class OwnOptimizer(NamedTuple):
    """The optimizer that a model brings.

    Attributes
    ----------
    optimizer : an instance of a class of `torch.optim`, over the model's parameters.
    scheduler : a scheduler of `torch.optim.lr_scheduler` of this optimizer; None if the learning rate is constant.
    interval, frequency : the scheduler takes a step after each ``frequency`` epochs or steps.
    monitor : the metric that a `ReduceLROnPlateau` monitors; None: that of the run.
    """

    optimizer: Any
    scheduler: Any = None
    interval: Literal["epoch", "step"] = "epoch"
    frequency: int = 1
    monitor: str | None = None


def check_complete(optimizer: Any, module: Any, name: str) -> None:
    """Check that an optimizer has all parameters of a module that require a gradient: a run steps all of them.

    Raises
    ------
    ConfigurationError : parameters are missing; the error names the optimizer ``name``.
    """
    missing = _missing(optimizer, module)
    if missing:
        raise ConfigurationError(
            f"{name} does not have the parameter {missing[0]!r} ({len(missing)} are missing): a run steps all parameters that "
            "require a gradient; set requires_grad = False for the others"
        )


def check_not_partial(optimizer: Any, module: Any) -> None:
    """Check an instance of an optimizer, of which a run uses only class and options: it must not leave out parameters.

    An optimizer without any parameter of the module is accepted, such as one that was made for a copy of it.

    Raises
    ------
    ConfigurationError : the optimizer has some parameters of the module, but not all that require a gradient.
    """
    if hasattr(optimizer, "param_groups") and hasattr(module, "named_parameters"):
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if len(_missing(optimizer, module)) < len(trainable):
            check_complete(optimizer, module, f"the optimizer {type(optimizer).__name__}")


def warn_of_state(optimizer: Any) -> None:
    """Warn if an instance of an optimizer has taken steps: a run uses its class and options, and starts without its state."""
    states = getattr(optimizer, "state", None)  # an optimizer of a user may keep other things there
    for state in states.values() if isinstance(states, Mapping) else ():
        if not isinstance(state, Mapping):
            continue
        stepped = {name: value for name, value in state.items() if value is not None}
        if stepped and float(stepped.pop("step", 1)) > 0:
            held = f", such as {next(iter(stepped))!r}," if stepped else ""
            warnings.warn(
                f"the optimizer {type(optimizer).__name__} has taken steps, but a run uses its class and options only: its "
                f"state{held} is not used",
                stacklevel=3,
            )
            return


def _missing(optimizer: Any, module: Any) -> list[str]:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [
        name for name, parameter in module.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]
