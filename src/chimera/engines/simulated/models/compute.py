"""The compute model: duration of calls, speed of actors, and stragglers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.engines.simulated.models.draws import standard_normal
from chimera.engines.simulated.options import check_range


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The duration of calls, in virtual seconds.

    A call lasts ``seconds_per_call`` plus what it declares through `chimera.core.call.work`, times the factors of its
    actor and of the call. The draws depend on the engine's seed, the actor's name and the number of its call only.

    Attributes
    ----------
    seconds_per_call : fixed duration of every call.
    seconds_per_sample : duration per sample.
    seconds_per_element : duration per element of a vector, for instance when a server averages gradients.
    spread : sigma of a log-normal factor (median 1) drawn once an actor: heterogeneous machines.
    straggler_spread : sigma of a log-normal factor (median 1) drawn for every call: stragglers.
    slow : further fixed factors by actor name; 4.0 is four times as slow.
    """

    seconds_per_call: float = 1e-4
    seconds_per_sample: float = 1e-5
    seconds_per_element: float = 1e-9
    spread: float = 0.0
    straggler_spread: float = 0.0
    slow: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("seconds_per_call", "seconds_per_sample", "seconds_per_element", "spread", "straggler_spread"):
            check_range(name, getattr(self, name))
        for name, factor in self.slow.items():
            check_range(f"slow, {name!r}", factor, above_zero=True)

    def actor_factor(self, seed: int, actor: str) -> float:
        """Return the factor by which ``actor`` is slower than the median machine."""
        drawn = math.exp(self.spread * standard_normal(seed, "actor", actor)) if self.spread else 1.0
        return drawn * self.slow.get(actor, 1.0)

    def call_factor(self, seed: int, actor: str, number: int) -> float:
        """Return the factor by which call ``number`` (from 0) of ``actor`` takes longer than the median call."""
        if not self.straggler_spread:
            return 1.0
        return math.exp(self.straggler_spread * standard_normal(seed, "call", actor, number))
