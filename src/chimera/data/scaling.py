"""Standardization of features, stored so that new rows can be scaled in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of each feature; float64, the shape of one row."""

    mean: NDArray[Any]
    deviation: NDArray[Any]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Return the scaling that gives each feature of ``values``, one row per sample, mean 0 and deviation 1.

        A constant feature becomes 0.
        """
        mean = values.mean(axis=0, dtype=np.float64)
        deviation = values.std(axis=0, dtype=np.float64)
        # rounding gives a constant feature a tiny deviation; a division by it would amplify rounding errors
        return cls(mean, np.where(deviation > 1e-7 * np.abs(mean), deviation, 1.0))

    def apply(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return scaled rows."""
        scaled: NDArray[np.float32] = ((values - self.mean) / self.deviation).astype(np.float32)
        return scaled

    def undo(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the original values of scaled rows."""
        return np.asarray(values * self.deviation + self.mean)

    def after(self, earlier: Scaling | None) -> Scaling:
        """Return the composition: ``earlier`` is applied first, then this scaling."""
        if earlier is None:
            return self
        return Scaling(earlier.mean + earlier.deviation * self.mean, earlier.deviation * self.deviation)
