"""Models of the availability of clients: when each is on, drawn from its name."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.engines.simulated.models.draws import standard_normal, uniform, uniforms
from chimera.engines.simulated.options import check_range

_AT_ONCE = 64
"""Number of durations that are drawn at once."""


class AvailabilityModel(ABC):
    """A model of the intervals in which clients are on. One verb: `intervals`."""

    @abstractmethod
    def intervals(self, seed: int, name: str) -> Iterator[tuple[float, float]]:
        """Yield, without an end, the start and end of each interval in which a client is on, in seconds and in order.

        The intervals must depend on the arguments only: a resumed run reads them again.
        """


AVAILABILITY: Registry[AvailabilityModel] = Registry(
    "availability model", "chimera.engines.simulated.models", AvailabilityModel
)


@AVAILABILITY.register("markov")
@dataclass(frozen=True, kw_only=True)
class Markov(AvailabilityModel):
    """Clients that change between on and off at random times: both durations are exponential.

    A share ``mean_on_s / (mean_on_s + mean_off_s)`` of all clients is on at any time, from the start of the run.

    Attributes
    ----------
    mean_on_s, mean_off_s : mean duration in seconds.
    """

    mean_on_s: float
    mean_off_s: float

    def __post_init__(self) -> None:
        for key in ("mean_on_s", "mean_off_s"):
            check_range(key, getattr(self, key), above_zero=True)
            if getattr(self, key) == math.inf:
                raise ConfigurationError(f"{key} = inf must be finite")

    def intervals(self, seed: int, name: str) -> Iterator[tuple[float, float]]:
        """Yield intervals, from a draw for each duration."""
        blocks = (uniforms(_AT_ONCE, seed, "markov", name, block) for block in itertools.count())
        drawn = itertools.chain.from_iterable(blocks)
        time_s = 0.0
        if uniform(seed, "is on", name) >= self.mean_on_s / (self.mean_on_s + self.mean_off_s):
            time_s = -self.mean_off_s * math.log(next(drawn))
        while True:
            off_s = time_s - self.mean_on_s * math.log(next(drawn))
            yield time_s, off_s
            time_s = off_s - self.mean_off_s * math.log(next(drawn))


@AVAILABILITY.register("diurnal")
@dataclass(frozen=True, kw_only=True)
class Diurnal(AvailabilityModel):
    """Clients that are on once in each period, around a time of their own: for instance at night.

    Attributes
    ----------
    on_s : how long a client is on in each period, in seconds; default: 6 hours.
    peak_s : time in the period around which most clients are on; default 0, the start of the run.
    spread_s : standard deviation of the clients' own times around it (time zones and habits); default: 3 hours.
    jitter_s : standard deviation of the time of one client from period to period; default: 30 minutes. Deviations are limited
        to a quarter of the time that the client is off.
    period_s : the period; default: one day.
    """

    on_s: float = 21_600.0
    peak_s: float = 0.0
    spread_s: float = 10_800.0
    jitter_s: float = 1_800.0
    period_s: float = 86_400.0

    def __post_init__(self) -> None:
        check_range("period_s", self.period_s, above_zero=True)
        check_range("on_s", self.on_s, above_zero=True)
        for key in ("peak_s", "spread_s", "jitter_s"):
            check_range(key, getattr(self, key))
        if max(self.period_s, self.spread_s, self.peak_s) == math.inf:
            raise ConfigurationError("period_s, peak_s and spread_s must be finite")
        if self.on_s >= self.period_s:
            raise ConfigurationError(f"on_s = {self.on_s!r} must be less than period_s = {self.period_s!r}")

    def intervals(self, seed: int, name: str) -> Iterator[tuple[float, float]]:
        """Yield one interval for each period, beginning with that before the start of the run."""
        middle_s = (self.peak_s + self.spread_s * standard_normal(seed, "middle", name)) % self.period_s
        limit_s = (self.period_s - self.on_s) / 4
        for number in itertools.count(-1):
            moved_s = self.jitter_s * standard_normal(seed, "day", name, number) if self.jitter_s else 0.0
            begin_s = middle_s + number * self.period_s + min(max(moved_s, -limit_s), limit_s) - self.on_s / 2
            if begin_s + self.on_s > 0:
                yield max(begin_s, 0.0), begin_s + self.on_s
