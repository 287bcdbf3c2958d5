"""Moments of the tensors of a vector, in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import check_finite
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import ABSOLUTE, NEGATIVE, SQUARE, TOP, TOTAL
from chimera.core.parameters import Flat

ALL = TOTAL | ABSOLUTE | SQUARE | TOP | NEGATIVE


class Moments(NamedTuple):
    """Moments of one tensor: size, sums of x, of |x| and of x squared, largest magnitude, and number of sign bits set."""

    size: int
    total: float
    absolute: float
    square: float
    top: float
    negative: int

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(max(self.square / self.size - (self.total / self.size) ** 2, 0.0))


def moments(
    vector: Flat,
    bounds: Sequence[int],
    *,
    signs: NDArray[np.uint8] | None = None,
    columns: int = ALL,
    again: bool = False,
) -> list[Moments]:
    """Return the moments of each tensor; ``signs`` receives the packed sign bits. Sums are exact to about six digits.

    Moments that ``columns`` does not name (`TOTAL`, `ABSOLUTE` and so on, see `layout`) are 0. With ``again`` the vector is
    read from its end, so that its start is in the cache for the next pass.

    Raises
    ------
    CodecError : the vector holds NaN or infinity.
    """
    table = np.zeros((len(bounds) - 1, 5))
    if len(bounds) > 1:
        nothing = np.empty(0, np.uint8)
        kernels(vector).moments(
            vector, np.array(bounds, np.int64), again, columns, nothing if signs is None else signs, table
        )
    check_finite(table)
    sizes = np.diff(bounds).tolist()
    rows = zip(sizes, table.tolist(), strict=True)
    return [Moments(n, total, absolute, square, top, int(set_)) for n, (total, absolute, square, top, set_) in rows]
