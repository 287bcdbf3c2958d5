"""Flat parameters: one float32 vector for a whole model, and the layout of the tensors in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.counted import counted
from chimera.core.device import namespace
from chimera.core.errors import ConfigurationError
from chimera.core.rows import RowLayout

Flat: TypeAlias = NDArray[np.float32]
"""float32, shape (P,). If a function or a codec allows it, a tensor of torch on any device."""

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors in a flat vector, in order.

    Attributes
    ----------
    names : one name for each tensor.
    shapes : one shape for each tensor; `()` is a scalar.
    offsets : the start of each tensor, and the length of the whole vector.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        offsets = [0]
        for shape in self.shapes:
            offsets.append(offsets[-1] + math.prod(shape))
        object.__setattr__(self, "offsets", tuple(offsets))

    @property
    def size(self) -> int:
        """The number of elements of the flat vector."""
        return self.offsets[-1]

    @cached_property
    def rows(self) -> RowLayout:
        """The layout of the rows of the tensors."""
        return RowLayout.of(self.shapes)

    @cached_property
    def row_ranges(self) -> dict[str, tuple[int, int]]:
        """The number of the first row and the number of rows of each tensor, by name; see `RowLayout`."""
        counts = [RowLayout.of([shape]).rows for shape in self.shapes]
        firsts = itertools.accumulate(counts, initial=0)
        return {name: (first, count) for name, first, count in zip(self.names, firsts, counts, strict=False)}

    def bounds(self, shards: int) -> list[int]:
        """Return the ``shards + 1`` offsets that cut the vector into shards of similar length, none empty.

        No cut is within a row: each is at a row's edge next to the even cut. A tensor of one dimension may be cut anywhere.

        Raises
        ------
        ConfigurationError : there are fewer rows than shards.
        """
        rows = self.rows
        if shards > rows.rows:
            raise ConfigurationError(
                f"{self.size} parameters in {rows.rows} rows cannot be spread over {counted(shards, 'shard')}: rows stay whole"
            )
        cuts = [0]
        for i in range(1, shards):  # each shard gets at least one row
            cuts.append(min(max(rows.nearest(self.size * i // shards), cuts[-1] + 1), rows.rows - shards + i))
        return [*map(rows.offset, cuts), self.size]

    def split(self, flat: Flat) -> dict[str, Flat]:
        """Return a view of each tensor in ``flat``, by name."""
        places = zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False)
        return {name: flat[begin:end].reshape(shape) for name, shape, begin, end in places}

    def cut(self, begin: int, end: int) -> Layout:
        """Return the layout of ``flat[begin:end]``; a tensor that is cut within a row becomes a piece of one dimension."""
        names, shapes = [], []
        for name, shape, first, last in zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False):
            low, high = max(first, begin), min(last, end)
            if low < high or (first == last and begin <= first < end):
                names.append(name)
                shapes.append(_piece_of(shape, low - first, high - first))
        return Layout(tuple(names), tuple(shapes))


def _piece_of(shape: tuple[int, ...], low: int, high: int) -> tuple[int, ...]:
    """Return the shape of elements ``low`` to ``high`` of a tensor: whole rows if both are edges of rows."""
    width = math.prod(shape[1:])
    if (low, high) == (0, math.prod(shape)):
        return shape
    return (high - low,) if low % width or high % width else ((high - low) // width, *shape[1:])


def reduce_in_order(vectors: Sequence[Flat], out: Flat, scale: float = 1.0) -> Flat:
    """Write ``scale`` times the sum of the vectors, added in this order, to ``out``, which is none of them; return it.

    Floating-point addition depends on the order: equal vectors reduced by this function give equal bits. A sum that is not
    finite is not an error here; `all_finite` checks it.
    """
    factor = out.dtype.type(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        for low in range(0, out.size, _CHUNK):  # a piece at a time, so that the partial sum stays in cache
            total = out[low : low + _CHUNK]
            first, *others = [vector[low : low + _CHUNK] for vector in vectors]
            if others:
                np.add(first, others[0], out=total)
            else:
                np.copyto(total, first)
            for other in others[1:]:
                np.add(total, other, out=total)
            if factor != 1:
                np.multiply(total, factor, out=total)
    return out


def all_finite(vector: Flat) -> bool:
    """Return whether a vector has no NaN or infinity; one pass, limited by the memory bandwidth, if it has none."""
    xp = namespace(vector)
    # NaN, infinity and very large finite values propagate. Unlike dot, vdot does not warn about them.
    square = float(xp.vdot(vector, vector))
    return math.isfinite(square) or bool(xp.isfinite(vector).all())


def shard_bounds(size: int, shards: int) -> list[int]:
    """Return the ``shards + 1`` offsets that cut ``size`` elements into shards whose lengths differ by one at most."""
    return [size * i // shards for i in range(shards + 1)]


def shard_views(flat: Flat, bounds: Sequence[int]) -> list[Flat]:
    """Return a view of each shard of ``flat``; of a single one, ``flat`` itself."""
    return [flat] if len(bounds) == 2 else [flat[begin:end] for begin, end in itertools.pairwise(bounds)]
