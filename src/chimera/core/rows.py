"""Rows of a flat vector: their layout, and selected rows with their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
"""Numbers of rows, ascending, each once: shape (k,)."""


class SparseRows(NamedTuple):
    """Some rows of a flat vector. All other rows are zero, or not specified.

    Attributes
    ----------
    numbers : numbers of the rows, ascending, int64, shape (k,).
    values : values of these rows, one row after another, float32, shape (n,).
    """

    numbers: Numbers
    values: NDArray[np.float32]


@dataclass(frozen=True)
class RowLayout:
    """The rows of a flat vector. A row is the part of a tensor that an index on its first axis selects, or a scalar.

    A matrix has rows of its width, and a vector has rows of one element. Rows are numbered through all tensors.

    Attributes
    ----------
    counts, widths : number of rows of each run, and of elements of each row; both above 0. Neighbouring runs differ in width.
    firsts : number of the first row of each run, and the number of all rows.
    offsets : start of each run in the vector, and the length of the vector.
    """

    counts: tuple[int, ...]
    widths: tuple[int, ...]
    firsts: tuple[int, ...] = field(init=False, compare=False)
    offsets: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        firsts, offsets = [0], [0]
        for count, width in zip(self.counts, self.widths, strict=True):
            firsts.append(firsts[-1] + count)
            offsets.append(offsets[-1] + count * width)
        object.__setattr__(self, "firsts", tuple(firsts))
        object.__setattr__(self, "offsets", tuple(offsets))

    @classmethod
    def of(cls, shapes: Iterable[Sequence[int]]) -> RowLayout:
        """Return the rows of tensors of these shapes, one after another; tensors without elements have none."""
        runs = [(shape[0], math.prod(shape[1:])) if shape else (1, 1) for shape in shapes if math.prod(shape)]
        merged = [
            (sum(count for count, _ in group), width) for width, group in itertools.groupby(runs, lambda run: run[1])
        ]
        return cls(tuple(count for count, _ in merged), tuple(width for _, width in merged))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.firsts[-1]

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.offsets[-1]

    def offset(self, row: int) -> int:
        """Return the start of a row; ``row`` may be the number of all rows."""
        run = int(np.searchsorted(self.firsts, row, side="right")) - 1
        return (
            self.offsets[run]
            if run == len(self.counts)
            else self.offsets[run] + (row - self.firsts[run]) * self.widths[run]
        )

    def nearest(self, offset: int) -> int:
        """Return the row whose start is nearest to a place in the vector; the first of two equally near."""
        run = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        if run == len(self.counts):
            return self.rows
        row, rest = divmod(offset - self.offsets[run], self.widths[run])
        return self.firsts[run] + row + (2 * rest > self.widths[run])

    def elements(self, numbers: Numbers) -> int:
        """Return the number of elements in these rows."""
        return self.only(numbers).size

    def only(self, numbers: Numbers) -> RowLayout:
        """Return the layout of a vector with only these rows, run by run; runs without rows are omitted."""
        edges = np.searchsorted(numbers, self.firsts).tolist()
        return RowLayout.of(
            (high - low, width) for (low, high), width in zip(itertools.pairwise(edges), self.widths, strict=True)
        )

    def gather(self, flat: NDArray[Any], numbers: Numbers) -> NDArray[Any]:
        """Return the values of these rows of ``flat``, one row after another, as a copy."""
        values = np.empty(self.elements(numbers), flat.dtype)
        for block, part, which in self._blocks(flat, values, numbers):
            np.take(block, which, axis=0, out=part, mode="clip")  # with "raise" NumPy would fill a copy first
        return values

    def filled(self, rows: SparseRows) -> NDArray[np.float32]:
        """Return the whole vector, with zeros in all other rows."""
        flat = np.zeros(self.size, np.float32)
        self.scatter(rows, flat)
        return flat

    def scatter(self, rows: SparseRows, flat: NDArray[Any]) -> None:
        """Write rows to their places in ``flat``."""
        for block, part, which in self._blocks(flat, rows.values, rows.numbers):
            block[which] = part

    def add(self, rows: SparseRows, flat: NDArray[Any]) -> None:
        """Add rows at their places in ``flat``."""
        for block, part, which in self._blocks(flat, rows.values, rows.numbers):
            block[which] += part

    def multiply(self, flat: NDArray[Any], factors: NDArray[np.float32]) -> None:
        """Multiply each row of ``flat`` by its own factor; ``factors`` has shape (rows,)."""
        for i, (count, width) in enumerate(zip(self.counts, self.widths, strict=True)):
            block = flat[self.offsets[i] : self.offsets[i + 1]].reshape(count, width)
            block *= factors[self.firsts[i] : self.firsts[i + 1], None]

    def _blocks(
        self, flat: NDArray[Any], values: NDArray[Any], numbers: Numbers
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], Numbers]]:
        """Yield, for each run, its rows in ``flat``, the values of the selected ones, and their numbers."""
        edges, at = np.searchsorted(numbers, self.firsts).tolist(), 0
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            if low < high:
                count, width = self.counts[i], self.widths[i]
                end = at + (high - low) * width
                block = flat[self.offsets[i] : self.offsets[i + 1]].reshape(count, width)
                yield block, values[at:end].reshape(high - low, width), numbers[low:high] - self.firsts[i]
                at = end
