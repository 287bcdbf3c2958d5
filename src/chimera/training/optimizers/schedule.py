"""How a learning rate changes over a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.refusal import why


@dataclass(frozen=True)
class Schedule:
    """By which factor a learning rate is multiplied at each step.

    Attributes
    ----------
    decay : ``constant``; ``linear`` or ``cosine`` (Loshchilov and Hutter 2017, "SGDR"): from the end of the warm-up down to
        ``final`` when the budget is used; or ``inverse-sqrt`` (Vaswani et al. 2017, "Attention Is All You Need"): by one over
        the root of the number of the step, from the last step of the warm-up on.
    warm_up : the share of the steps over which the factor rises to 1 in equal parts; 0 for none.
    final : the factor at the end of a decay, below which it never falls.
    steps : how many steps the budget is; None as long as that is not known. Later steps have the last one's factor.
    """

    decay: Literal["constant", "linear", "cosine", "inverse-sqrt"] = "constant"
    warm_up: float = 0.0
    final: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up <= 1:
            raise ConfigurationError(f"warm_up is a share of the budget, from 0 to 1, not {self.warm_up}")
        if not 0 <= self.final <= 1:
            raise ConfigurationError(f"final is a share of the learning rate, from 0 to 1, not {self.final}")

    @classmethod
    def of(cls, given: Any) -> Self:
        """Return the schedule of an experiment: the name of a decay, or a table.

        Raises
        ------
        ConfigurationError : it is neither, or an option is unknown or of the wrong type.
        """
        table = {"decay": given} if isinstance(given, str) else given
        known = {"decay", "warm_up", "final"}
        if not isinstance(table, Mapping) or not known.issuperset(table):
            raise ConfigurationError(f"schedule: {given!r} is no decay, and no table of {', '.join(sorted(known))}")
        try:
            return msgspec.convert(dict(table), cls)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"schedule: {given!r} cannot be used: {why(error, cls)}") from error

    @property
    def changes(self) -> bool:
        """Whether the factor is not 1 throughout."""
        return self.decay != "constant" or self.warm_up > 0

    @property
    def needs_steps(self) -> bool:
        """Whether the factor depends on how many steps there will be."""
        return self.decay in ("linear", "cosine") or self.warm_up > 0

    def factor(self, step: int) -> float:
        """Return the factor of a step, the first of which is 0; it depends on nothing else."""
        if not self.changes or (self.steps is None and self.needs_steps):
            return 1.0
        steps = self.steps or 0
        rising = self.warm_up * steps
        if step + 1 < rising:
            return (step + 1) / rising
        if self.decay == "constant":
            return 1.0
        if self.decay == "inverse-sqrt":
            return max(math.sqrt(max(rising, 1.0) / (step + 1)), self.final)
        done = min(max(step - rising, 0.0) / max(steps - rising, 1.0), 1.0)
        if self.decay == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return 1.0 - done + self.final * done
