"""Updates as integers modulo a power of two: their sums are exact, and masks cancel exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.parameters import Flat

_FINE = 2.0**-20  # largest step for words of 32 bits, as a share of the limit


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of the elements of an update as words that are added modulo 2^32 or 2^64.

    An element is an integer number of steps. The step is the smallest power of two for which the sum of all clients does not
    overflow. Words have 32 bits if that step is at most a millionth (2^-20) of the limit, as with up to 1,024 clients, and else
    64. Rounding changes each element by at most half a step; the sum adds no error.

    Parameters
    ----------
    limit : largest absolute value of an element.
    clients : largest number of updates in a sum.

    Raises
    ------
    ConfigurationError : the limit is not positive or not finite, or there is no client.
    """

    limit: float
    clients: int

    def __post_init__(self) -> None:
        if not (0 < self.limit < math.inf and self.clients >= 1):
            raise ConfigurationError(
                f"fixed point needs a finite limit above 0 and at least one client, not {self.limit} and {self.clients}"
            )
        object.__setattr__(self, "limit", float(np.float32(self.limit)))  # the largest value that an element can have

    @cached_property
    def bits(self) -> int:
        """The bits of a word: 32 or 64."""
        return 32 if self._step(32) <= _FINE * self.limit else 64

    @cached_property
    def step(self) -> float:
        """The value of one unit of a word."""
        return self._step(self.bits)

    @property
    def words(self) -> np.dtype[Any]:
        """The type of a word: unsigned, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, update: Flat) -> NDArray[Any]:
        """Return the update, float32, shape (n,), as words, shape (n,).

        Raises
        ------
        DataError : an element is NaN or beyond the limit.
        """
        largest = float(np.abs(update).max(initial=0))
        if not largest <= self.limit:
            raise DataError(f"an element of an update is {largest:g}, beyond the agreed limit of {self.limit:g}")
        return np.rint(update.astype(np.float64) / self.step).astype(f"<i{self.bits // 8}").view(self.words)

    def decode(self, total: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum in words, shape (n,), as float64; exact up to 53 bits."""
        return total.view(f"<i{self.bits // 8}") * self.step

    def _step(self, bits: int) -> float:
        """Return the smallest step for which the sum of all clients is below half of the range of words."""
        steps = (2.0 ** (bits - 1) - 1) / self.clients - 1  # of one client; the last 1 is for rounding
        fraction, exponent = math.frexp(self.limit / steps)
        return math.ldexp(1.0, exponent if fraction > 0.5 else exponent - 1)
