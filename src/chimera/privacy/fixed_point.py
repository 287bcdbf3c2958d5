"""Updates as whole numbers modulo a power of two: sums of them are exact, and masks that cancel leave no trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.parameters import Flat

_FINE = 2.0**-20  # of the limit: steps that are as fine as this or finer will do


@dataclass(frozen=True)
class FixedPoint:
    """How the elements of an update become words that are added modulo 2^32 or 2^64.

    An element is a whole number of steps, a power of two so small or so large that the sum of all clients just does not go
    round. Words have 32 bits where the step is then at most a millionth (2^-20) of the limit, as it is with up to 1,024
    clients, and else 64. Rounding takes each element half a step away at most; the sum adds nothing to that.

    Parameters
    ----------
    limit : the largest absolute value that an element may have.
    clients : how many updates are added at most.

    Raises
    ------
    ConfigurationError : one of them is not above 0, or the limit is not finite.
    """

    limit: float
    clients: int

    def __post_init__(self) -> None:
        if not (0 < self.limit < math.inf and self.clients >= 1):
            raise ConfigurationError(
                f"fixed point needs a finite limit above 0 and at least one client, not {self.limit} and {self.clients}"
            )
        object.__setattr__(self, "limit", float(np.float32(self.limit)))  # which an element may have

    @cached_property
    def bits(self) -> int:
        """Of a word: 32 or 64."""
        return 32 if self._step(32) <= _FINE * self.limit else 64

    @cached_property
    def step(self) -> float:
        """What one stands for."""
        return self._step(self.bits)

    @property
    def words(self) -> np.dtype[Any]:
        """The type of a word: unsigned, the lowest byte first."""
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, update: Flat) -> NDArray[Any]:
        """Return the update, float32, shape (n,), as words, shape (n,).

        Raises
        ------
        DataError : an element is NaN or beyond the limit.
        """
        largest = float(np.abs(update).max(initial=0))
        if not largest <= self.limit:
            raise DataError(f"an element of an update is {largest:g}, beyond the {self.limit:g} that was agreed on")
        return np.rint(update.astype(np.float64) / self.step).astype(f"<i{self.bits // 8}").view(self.words)

    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum that words, shape (n,), stand for: float64, exact as far as 53 bits go."""
        return total.view(f"<i{self.bits // 8}") * self.step

    def _step(self, bits: int) -> float:
        """Return the smallest step with which the sum of all clients stays below half of all words."""
        steps = (2.0 ** (bits - 1) - 1) / self.clients - 1  # of a client; the last is for rounding
        fraction, exponent = math.frexp(self.limit / steps)
        return math.ldexp(1.0, exponent if fraction > 0.5 else exponent - 1)
