"""Learning-rate schedules: functions of the step, and of a reduction that the driver sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.validation_message import validation_message

_COMMON = "decay", "warm_up", "final"
_OPTIONS = {
    "step": ("gamma", "every"),
    "plateau": ("factor", "patience", "threshold", "threshold_mode"),
    "table": ("factors", "every"),
}  # options of a single decay


@dataclass(frozen=True)
class Schedule:
    """The factor of a learning rate at each step.

    Attributes
    ----------
    decay : ``constant``, ``linear``, ``cosine``, ``inverse-sqrt``, ``step``, ``table`` or ``plateau``. ``linear`` and
        ``cosine`` (Loshchilov and Hutter 2017, "SGDR"): from 1 after the warm-up to ``final`` at the end of the budget.
        ``inverse-sqrt`` (Vaswani et al. 2017, "Attention Is All You Need"): proportional to one over the root of the step,
        after the warm-up. ``step``: multiplied by ``gamma`` after each ``every`` steps. ``table``: the ``factors`` one after
        another, each for ``every`` steps. ``plateau``: multiplied by ``factor`` after each ``patience`` evaluations without
        improvement of the metric that the run monitors (see `Trainer`).
    warm_up : fraction of the steps, 0 to 1, over which the factor rises linearly to 1; default 0.
    final : lower bound of the factor, 0 to 1; default 0.
    steps : number of steps of the budget; None: not known. After them, ``linear`` and ``cosine`` stay at ``final``.
    gamma, every : options of ``step``. ``every`` counts steps after the warm-up; below 1, it is a fraction of the steps of the
        budget. Default: 0.1, and 0.3 of the steps.
    factors : the factors of ``table``, at least one, each at least 0; the last one remains.
    factor, patience : options of ``plateau``. Default: 0.1, and 5 evaluations.
    threshold, threshold_mode : options of ``plateau``: the smallest change of the metric that counts as an improvement, at
        least 0. It is a share of the best value (``rel``) or in its units (``abs``), as in torch's ``ReduceLROnPlateau``.
        Default: 0, ``rel``.
    reduction : the present factor of a plateau, which the driver sets in each process; see `reduce`.
    """

    decay: Literal["constant", "linear", "cosine", "inverse-sqrt", "step", "plateau", "table"] = "constant"
    warm_up: float = 0.0
    final: float = 0.0
    steps: int | None = None
    gamma: float = 0.1
    every: float = 0.3
    factor: float = 0.1
    patience: int = 5
    reduction: list[float] = field(default_factory=lambda: [1.0], compare=False)
    factors: tuple[float, ...] = ()
    threshold: float = 0.0
    threshold_mode: Literal["rel", "abs"] = "rel"

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up <= 1:
            raise ConfigurationError(f"warm_up must be a fraction of the steps, from 0 to 1, not {self.warm_up}")
        if not 0 <= self.final <= 1:
            raise ConfigurationError(f"final must be a fraction of the learning rate, from 0 to 1, not {self.final}")
        for name, value in (("gamma", self.gamma), ("factor", self.factor)):
            if not 0 < value < 1:
                raise ConfigurationError(f"{name} must be above 0 and below 1, not {value}")
        if not self.every > 0 or (self.every >= 1 and self.every % 1):
            raise ConfigurationError(
                f"every must be a number of steps, or a fraction of them below 1, not {self.every}"
            )
        if self.patience < 1:
            raise ConfigurationError(f"patience must be at least 1, not {self.patience}")
        if not 0 <= self.threshold < math.inf:
            raise ConfigurationError(f"threshold must be a number of at least 0, not {self.threshold}")
        if self.decay == "table" and not (self.factors and all(0 <= factor < math.inf for factor in self.factors)):
            raise ConfigurationError(f"factors must be numbers of at least 0, at least one, not {list(self.factors)}")

    @classmethod
    def of(cls, given: Any) -> Self:
        """Return a schedule from the name of a decay or a table.

        Raises
        ------
        ConfigurationError : the value is neither, or an option is unknown or has the wrong type.
        """
        table = {"decay": given} if isinstance(given, str) else given
        known = (*_COMMON, *(_OPTIONS.get(str(table.get("decay")), ()) if isinstance(table, Mapping) else ()))
        if not isinstance(table, Mapping) or not set(known).issuperset(table):
            raise ConfigurationError(
                f"schedule: {given!r} is neither a decay nor a table of {', '.join(sorted(known))}"
            )
        try:
            return msgspec.convert(dict(table), cls)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"schedule: {given!r} cannot be used: {validation_message(error, cls)}") from error

    @property
    def changes(self) -> bool:
        """Whether the factor differs from 1 at any step."""
        return self.decay != "constant" or self.warm_up > 0

    @property
    def needs_steps(self) -> bool:
        """Whether the factor depends on the number of steps."""
        by_fraction = self.decay in ("step", "table") and self.every < 1
        return self.decay in ("linear", "cosine") or self.warm_up > 0 or by_fraction

    def reduce(self, factor: float) -> None:
        """Set the factor of a plateau in this process, from now on."""
        self.reduction[0] = factor

    def at(self, step: int) -> float:
        """Return the factor of a step, counted from 0. It depends on the step only; for a plateau also on `reduce`."""
        if not self.changes or (self.steps is None and self.needs_steps):
            return 1.0
        steps = self.steps or 0
        rising = self.warm_up * steps
        if step + 1 < rising:
            return (step + 1) / rising * self.reduction[0]
        if self.decay in ("constant", "plateau"):
            return self.reduction[0]
        if self.decay in ("step", "table"):
            length = self.every * steps if self.every < 1 else self.every
            ended = int(max(step - rising, 0.0) / length + 1e-9)  # the product is not exact
            factor = self.gamma**ended if self.decay == "step" else self.factors[min(ended, len(self.factors) - 1)]
            return float(max(factor, self.final))
        if self.decay == "inverse-sqrt":
            return max(math.sqrt(max(rising, 1.0) / (step + 1)), self.final)
        done = min(max(step - rising, 0.0) / max(steps - rising, 1.0), 1.0)
        if self.decay == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return 1.0 - done + self.final * done
