"""Standardization of features: when it is needed, and its stored form, so that new rows can be scaled in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Standardize: TypeAlias = bool | Literal["auto"]
"""Whether features are standardized; ``"auto"``: if `needs_scaling` returns True."""
Pieces: TypeAlias = Callable[[], Iterable[NDArray[Any]]]
"""A function that returns the rows of some values in order, cut into pieces; each call starts again."""

MAX_FEATURE = 5.0
"""Larger features are standardized: gradient descent with a usual learning rate would diverge."""
MAX_WHOLE_FEATURE = 20.0
"""The same if all values are whole numbers, such as grades, small counts, and pixels of 4-bit images."""
RATIO = 1000.0
"""Features whose sizes differ by more are standardized. (Those of 8-bit images differ by at most 255.)"""
_BLOCK = 1 << 20  # values


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of each feature; float64, the shape of one row."""

    mean: NDArray[Any]
    deviation: NDArray[Any]

    @classmethod
    def of(cls, values: NDArray[Any] | Pieces) -> Self:
        """Return the scaling that gives each feature of ``values``, one row per sample, mean 0 and deviation 1.

        A constant feature becomes 0. The result does not depend on how the rows are cut into pieces.
        """
        blocks = _pieces_of(values)
        total, rows = _summed(blocks())
        mean = total / rows
        total, rows = _summed((block - mean) ** 2 for block in blocks())
        return cls.of_sums(mean, total, rows)

    @classmethod
    def of_sums(cls, mean: NDArray[Any], spread: NDArray[Any], rows: int) -> Self:
        """Return the scaling by the mean of each feature and the sum of the squared differences from it."""
        deviation = np.sqrt(spread / rows)
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


def needs_scaling(values: NDArray[Any] | Pieces) -> bool:
    """Return whether the features of a table, shape (n, k), are too large or too different in size to train well.

    The size of a feature is the root mean square of its values that are not 0, so that rare categories and dark pixels do not
    count as small. The largest size must be at most `MAX_FEATURE` (`MAX_WHOLE_FEATURE` in tables of whole numbers), and at
    most `RATIO` times the smallest.
    """
    blocks = _pieces_of(values)
    squares: Any = 0.0
    nonzero: Any = 0
    for block in blocks():
        squares = squares + np.einsum("ij,ij->j", block, block, dtype=np.float64)
        nonzero = nonzero + np.count_nonzero(block, axis=0)
    sizes = np.sqrt(squares[nonzero > 0] / nonzero[nonzero > 0])
    if not sizes.size or sizes.max() <= min(MAX_FEATURE, RATIO * sizes.min()):
        return False
    if sizes.max() > min(MAX_WHOLE_FEATURE, RATIO * sizes.min()):
        return True
    return not all(np.array_equal(block, np.rint(block)) for block in blocks())


def _pieces_of(values: NDArray[Any] | Pieces) -> Pieces:
    if callable(values):
        return values
    rows = max(_BLOCK // max(values[:1].size, 1), 1)

    def cut() -> Iterator[NDArray[Any]]:
        for begin in range(0, len(values), rows):
            yield values[begin : begin + rows]

    return cut


def _summed(blocks: Iterable[NDArray[Any]]) -> tuple[NDArray[Any], int]:
    """Return the sum over all rows, in float64, and their number. Rows are added one after another, in any blocks."""
    total, count = np.zeros(()), 0
    for block in blocks:
        # NumPy adds contiguous numbers of one column in pairs, but rows of two columns one after another
        rows = np.zeros((len(block) + 1, max(block[0].size, 2)))
        rows[0, : block[0].size] = total.ravel() if count else 0.0
        rows[1:, : block[0].size] = block.reshape(len(block), -1)
        total, count = rows.sum(axis=0)[: block[0].size].reshape(block.shape[1:]), count + len(block)
    return total, count
