"""Standardizing: what was subtracted from features, and what they were divided by, so that new rows get the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and deviation of each feature, of the shape of one row, float64."""

    mean: NDArray[Any]
    deviation: NDArray[Any]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Return that which gives each feature of ``values``, one row a sample, mean 0 and deviation 1; a constant one 0."""
        mean = values.mean(axis=0, dtype=np.float64)
        deviation = values.std(axis=0, dtype=np.float64)
        # rounding gives a constant feature a tiny deviation; dividing by it would make noise of it
        return cls(mean, np.where(deviation > 1e-7 * np.abs(mean), deviation, 1.0))

    def apply(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows scaled."""
        scaled: NDArray[np.float32] = ((values - self.mean) / self.deviation).astype(np.float32)
        return scaled

    def undo(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return scaled rows as they were."""
        return np.asarray(values * self.deviation + self.mean)

    def after(self, earlier: Scaling | None) -> Scaling:
        """Return the one that does what ``earlier`` does, then what this one does."""
        if earlier is None:
            return self
        return Scaling(earlier.mean + earlier.deviation * self.mean, earlier.deviation * self.deviation)
