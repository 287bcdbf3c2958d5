"""The budget of a run: limits and targets that end it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from chimera.core.errors import ConfigurationError, did_you_mean

CLIENT = "client_"  # prefix of the names of metrics of each worker on its own data
_SMALLER_IS_BETTER = ("loss", "mse", "mae", "rmse", "error", "cross-entropy", "perplexity", "consensus_distance")


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better: for losses and errors, also with names such as ``val_loss``."""
    name = metric.removeprefix(CLIENT).removesuffix("_mean").removesuffix("_worst_tenth")
    last_word = re.split(r"[\W_]", name.lower())[-1]
    return name in _SMALLER_IS_BETTER or last_word in _SMALLER_IS_BETTER or metric.endswith("_std")


@dataclass
class Counters:
    """Cumulative counters of a run; see `Progress` and `Cost` for their meaning."""

    rounds: int = 0
    samples: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    lost_rounds: int = 0
    elements_up: int = 0
    packed_up: int = 0
    elements_down: int = 0
    packed_down: int = 0
    tokens: int = 0
    flops: float = 0.0


@dataclass(frozen=True)
class Budget:
    """Limits of a run. The first one that is reached ends the run.

    Attributes
    ----------
    epochs : passes over the whole training data, counted over all workers; may be a fraction.
    rounds : updates of the global model.
    max_seconds : seconds of training on the engine's clock.
    max_bytes : bytes that all workers together send and receive.
    target : values of metrics on the test set, such as ``{"accuracy": 0.95}``. Losses and errors must fall to the value, other
        metrics must rise to it.
    """

    epochs: float | None = None
    rounds: int | None = None
    max_seconds: float | None = None
    max_bytes: int | None = None
    target: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "rounds", "max_seconds", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} must be above 0, not {value}")
        if all(getattr(self, name) is None for name in ("epochs", "rounds", "max_seconds", "max_bytes")):
            raise ConfigurationError("the run has no limit: set epochs, rounds, max_seconds or max_bytes")
        if not isinstance(self.target, Mapping | None):
            raise ConfigurationError(
                f"target is a table of metrics and values, such as {{accuracy = 0.95}}, not {self.target!r}"
            )
        targets: Mapping[str, Any] = self.target or {}
        for name, value in targets.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ConfigurationError(f"the target {name!r} is {value!r}: it must be a number")
            if math.isnan(value):
                raise ConfigurationError(f"the target {name!r} is {value}: no metric can reach it")

    def reached(self, used: Counters, metrics: Mapping[str, float], train_size: int) -> str | None:
        """Return the name of the limit that has been reached; None if there is none."""
        if self.target and all(self._is_met(name, metrics) for name in self.target):
            return "target"
        if self.epochs is not None and used.samples >= self.epochs * train_size:
            return "epochs"
        if self.rounds is not None and used.rounds >= self.rounds:
            return "rounds"
        if self.max_seconds is not None and used.seconds >= self.max_seconds:
            return "max_seconds"
        if self.max_bytes is not None and used.bytes_up + used.bytes_down >= self.max_bytes:
            return "max_bytes"
        return None

    def rounds_left(self, used: Counters, train_size: int, samples_per_round: int) -> int | None:
        """Return the number of rounds, at least 1, before which no limit can be reached; None if that is not known."""
        limits = []
        if self.rounds is not None:
            limits.append(self.rounds - used.rounds)
        if self.epochs is not None:
            limits.append(math.ceil((self.epochs * train_size - used.samples) / samples_per_round))
        if self.max_bytes is not None:
            per_round = (used.bytes_up + used.bytes_down) / used.rounds if used.rounds else math.inf
            limits.append(int((self.max_bytes - used.bytes_up - used.bytes_down) / per_round) if per_round else 1)
        return max(min(limits), 1) if limits else None

    def rounds_in_all(self, train_size: int | None, samples_per_round: int) -> int | None:
        """Return the most rounds that the budget allows; None if that is not known (``train_size`` may be None)."""
        limits = [] if self.rounds is None else [self.rounds]
        if self.epochs is not None and train_size is not None:
            limits.append(math.ceil(self.epochs * train_size / samples_per_round))
        return min(limits, default=None)

    def fraction(self, used: Counters, train_size: int) -> float:
        """Return the used fraction, 0 to 1, of the limit that is nearest to being reached."""
        bytes_used = used.bytes_up + used.bytes_down
        pairs = (
            (used.samples / train_size, self.epochs),
            (used.rounds, self.rounds),
            (used.seconds, self.max_seconds),
            (bytes_used, self.max_bytes),
        )
        return min(max(done / limit for done, limit in pairs if limit is not None), 1.0)

    def _is_met(self, name: str, metrics: Mapping[str, float]) -> bool:
        assert self.target is not None
        if name not in metrics:
            if metrics:
                raise ConfigurationError(
                    f"the target {name!r} is not measured{did_you_mean(name, metrics)} known: {', '.join(metrics)}"
                )
            return False
        wanted = self.target[name]
        return metrics[name] <= wanted if smaller_is_better(name) else metrics[name] >= wanted
