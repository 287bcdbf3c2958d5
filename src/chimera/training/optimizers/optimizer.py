"""Settings of optimizers, and the protocol of an optimizer of one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.optimizers.flat_optimizer import FlatOptimizer
from chimera.training.optimizers.plain_sgd import PlainSGD
from chimera.training.optimizers.refusal import refusal
from chimera.training.optimizers.schedule import Schedule

_SGD_LEARNING_RATE = 0.1  # torch's default of 1e-3 trains too slowly


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of an optimizer, which the driver sends to servers and workers.

    Attributes
    ----------
    name : a class of `torch.optim`, in upper or lower case: ``sgd``, ``adam``, ``AdamW``, ...; ``momentum``: SGD with momentum
        0.9; ``yogi``; or your own class as ``package.module:Class``.
    options : keyword arguments of the class. The learning rate of ``sgd`` and ``momentum`` is 0.1 unless it is set; other
        optimizers have torch's default.
    schedule : schedule of the learning rate.
    max_gradient_norm : a gradient with a larger Euclidean norm is scaled to this norm before a step; None: no limit.
    """

    name: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)
    max_gradient_norm: float | None = None

    def __post_init__(self) -> None:
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ConfigurationError(f"max_gradient_norm must be above 0, not {self.max_gradient_norm}")
        if self.name.lower() == "sgd" and "lr" not in self.options:
            object.__setattr__(self, "options", {**self.options, "lr": _SGD_LEARNING_RATE})

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Return the settings for a name and options, which may include ``schedule``."""
        given = dict(options)
        if name.lower() == "momentum":
            name, given = "sgd", {"momentum": 0.9, **given}
        schedule = Schedule.of(given.pop("schedule", "constant"))
        return cls(name, given, schedule)

    def __str__(self) -> str:
        """Return name and options for people, such as ``sgd (lr 0.1, momentum 0.9)``."""
        parts = [
            key if value is True else f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in self.options.items()
        ]
        parts += [f"schedule {self.schedule.decay}"] if self.schedule.changes else []
        parts += [f"gradient norm at most {self.max_gradient_norm:g}"] if self.max_gradient_norm else []
        return f"{self.name} ({', '.join(parts) or 'default options'})"

    def over(self, steps: int | None) -> Self:
        """Return these settings for a run of ``steps`` steps.

        Raises
        ------
        ConfigurationError : the schedule needs the number of steps, and it is not known.
        """
        if steps is None and self.schedule.needs_steps:
            raise ConfigurationError(
                f"the schedule of the optimizer {self.name!r} needs the length of the run in steps: set rounds, "
                "or epochs if the driver has the data"
            )
        return replace(self, schedule=replace(self.schedule, steps=steps, reduction=[1.0]))

    def own(self) -> Self:
        """Return a copy for one actor, whose learning rate can be reduced separately."""
        return replace(self, schedule=replace(self.schedule, reduction=list(self.schedule.reduction)))

    @property
    def plain(self) -> bool:
        """Whether the optimizer is SGD without momentum, clipping or other options, which has no state."""
        return self.name.lower() == "sgd" and set(self.options) <= {"lr"} and self.max_gradient_norm is None

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step of plain SGD.

        Raises
        ------
        ConfigurationError : it is not a number.
        """
        try:
            return float(self.options["lr"]) * self.schedule.at(step)
        except (TypeError, ValueError) as error:
            raise refusal(self.name, self.options, error) from error

    def stepper(self, flat: Flat) -> Stepper:
        """Return an optimizer that updates ``flat`` in place. Plain SGD needs no torch."""
        if self.plain and find_spec("torch") is None:
            return PlainSGD(flat, self.learning_rate)
        return FlatOptimizer(self, flat)

    def check(self) -> None:
        """Take a trial step on a single parameter, so that errors are raised before anything runs."""
        optimizer = self.stepper(np.zeros(1, np.float32))
        try:
            optimizer.step(np.zeros(1, np.float32), 0)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"the optimizer {self.name!r} cannot update a flat dense vector: {error}"
            ) from error


class Stepper(Protocol):
    """An optimizer that updates one flat vector in place."""

    def step(self, gradient: Flat, number: int) -> None:
        """Take step ``number`` (from 0) with ``gradient``, shape (P,), writable."""

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take step ``number`` (from 0) with a gradient that is zero outside the given rows of ``layout``."""

    def curvature(self) -> Flat | None:
        """Return an estimate of the diagonal of the loss's curvature, shape (P,); None if the optimizer has none."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the optimizer's state as arrays."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""


class StepperFactory(Protocol):
    """Settings from which a server creates an optimizer: `OptimizerSettings`, or others that need no torch."""

    def stepper(self, flat: Flat) -> Stepper:
        """Return an optimizer that updates ``flat``, shape (P,), in place."""
