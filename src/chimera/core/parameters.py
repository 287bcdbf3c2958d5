"""Flat parameters: one float32 vector for a whole model, and the layout that says what lies where in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.device import namespace
from chimera.core.errors import ConfigurationError
from chimera.core.rows import RowLayout

Flat: TypeAlias = NDArray[np.float32]
"""float32, shape (P,). Where a function or a codec says so, it may be a tensor of torch on any device."""

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors in a flat vector, in order.

    Attributes
    ----------
    names : one name a tensor.
    shapes : one shape a tensor; `()` is a scalar.
    offsets : where each tensor begins, and at the end the length of the whole vector.
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
        """How many elements the flat vector has."""
        return self.offsets[-1]

    @cached_property
    def rows(self) -> RowLayout:
        """Where the rows of the tensors lie."""
        return RowLayout.of(self.shapes)

    @cached_property
    def row_ranges(self) -> dict[str, tuple[int, int]]:
        """The number of the first row of each tensor, and how many it has, by name; see `RowLayout`."""
        counts = [RowLayout.of([shape]).rows for shape in self.shapes]
        firsts = itertools.accumulate(counts, initial=0)
        return {name: (first, count) for name, first, count in zip(self.names, firsts, counts, strict=False)}

    def bounds(self, shards: int) -> list[int]:
        """Return the ``shards + 1`` offsets that cut the vector into shards of about one length, none empty.

        No cut goes through a row: each lies between the two rows where an even cut would, or next to that. A tensor of one
        dimension may be cut anywhere.

        Raises
        ------
        ConfigurationError : there are fewer rows than shards.
        """
        rows = self.rows
        if shards > rows.rows:
            raise ConfigurationError(
                f"{self.size} parameters in {rows.rows} rows cannot be spread over {shards} shards: a row stays whole"
            )
        cuts = [0]
        for i in range(1, shards):  # each leaves a row for itself, and one for each that follows
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
    """Return the shape of elements ``low`` to ``high`` of a tensor: as many rows, where they begin and end with one."""
    width = math.prod(shape[1:])
    if (low, high) == (0, math.prod(shape)):
        return shape
    return (high - low,) if low % width or high % width else ((high - low) // width, *shape[1:])


def reduce_in_order(vectors: Sequence[Flat], out: Flat, scale: float = 1.0) -> Flat:
    """Write ``scale`` times the sum of the vectors, added in the order given, to ``out``, which is none of them; return it.

    Floating-point addition depends on the order: whoever reduces the same vectors by this gets the same bits. A sum that is
    not finite is no error here; `all_finite` tells.
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
    """Return whether no element of a vector is NaN or infinite; in one pass at the speed of memory, if none is."""
    xp = namespace(vector)
    # NaN and infinity go through it; so does what is finite but very large. Unlike dot, vdot says nothing to that.
    square = float(xp.vdot(vector, vector))
    return math.isfinite(square) or bool(xp.isfinite(vector).all())


def shard_bounds(size: int, shards: int) -> list[int]:
    """Return the ``shards + 1`` offsets that cut ``size`` elements into shards whose lengths differ by one at most."""
    return [size * i // shards for i in range(shards + 1)]


def shard_views(flat: Flat, bounds: Sequence[int]) -> list[Flat]:
    """Return a view of each shard of ``flat``; of a single one, ``flat`` itself."""
    return [flat] if len(bounds) == 2 else [flat[begin:end] for begin, end in itertools.pairwise(bounds)]
