"""The rows of a vector that are not zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array, check_finite, count_arrays, finite, integer, output_for
from chimera.codecs.kernels import kernels
from chimera.codecs.scratch import Scratch
from chimera.codecs.sparse import pack_indices, unpack_indices
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.rows import Numbers, RowLayout, SparseRows


@CODECS.register("rows")
class Rows(Codec):
    """After Li et al. 2014: Scaling Distributed Machine Learning with the Parameter Server. The rows that are not all zero.

    The codec is lossless. It suits gradients with few nonzero rows in large tables, such as embeddings. An index on the first
    axis of a tensor selects a row; in a tensor of one dimension, a row is an element. If this does not shorten the message, all
    rows are sent.

    With ``downlink = "rows"``, workers pull only the rows that their next batches need, if the model can report these. For
    other models, ``downlink = { name = "delta", codec = "rows" }`` sends the rows that have changed.
    """

    by_rows = True

    def __init__(self) -> None:
        self._scratch = Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Find the nonzero rows, and encode them if that is shorter."""
        rows = layout.rows
        if rows.size != vector.size:
            raise CodecError(f"a vector of {vector.size} elements does not fit a layout of {layout.size}")
        numbers = np.flatnonzero(nonzero_rows(vector, rows, self._scratch.array("flags", rows.rows, np.uint8)))
        if rows.elements(numbers) < vector.size:
            encoded = pack_rows(SparseRows(numbers, rows.gather(vector, numbers)), rows)
            if encoded.nbytes < vector.nbytes:
                return encoded
        check_finite(vector)
        return Encoded("rows", vector.size, (vector,))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector, with zeros in all other rows."""
        if count_arrays(encoded, 1, 3, 4) == 1:
            return finite(encoded, array(encoded, 0, np.float32, encoded.size), "values")
        layout = _layout_of(encoded)
        rows, out = _unpacked(encoded, layout), output_for(encoded, out)
        out.fill(0)
        layout.scatter(rows, out)
        return out

    def rows(self, encoded: Encoded, layout: RowLayout) -> SparseRows | None:
        """Return the rows of the message; None if it holds the whole vector."""
        if count_arrays(encoded, 1, 3, 4) == 1:
            return None
        if _layout_of(encoded) != layout:
            raise CodecError(f"the rows of a {encoded.codec} message are not as long as those of its receiver")
        return _unpacked(encoded, layout)


def nonzero_rows(vector: Flat, layout: RowLayout, flags: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Write 1 to ``flags``, shape (rows,), for each row with a bit set, else 0; return it."""
    kernel = kernels(vector).nonzero_rows
    for i, width in enumerate(layout.widths):
        kernel(vector[layout.offsets[i] : layout.offsets[i + 1]], width, flags[layout.firsts[i] : layout.firsts[i + 1]])
    return flags


def pack_rows(rows: SparseRows, layout: RowLayout) -> Encoded:
    """Encode some rows of a vector; they may be zero."""
    check_finite(rows.values)
    indices, meta = pack_indices(rows.numbers, layout.rows)
    runs = np.array([*layout.counts, *layout.widths], np.uint32)
    return Encoded("rows", layout.size, (rows.values, runs, *indices), {"rows": rows.numbers.size, **meta})


def check_numbers(numbers: NDArray[np.uint32], layout: RowLayout) -> Numbers:
    """Return requested row numbers, if they are ascending numbers of rows of ``layout``.

    Raises
    ------
    CodecError : the numbers are not ascending numbers of rows.
    """
    found = numbers.astype(np.int64)
    if found.ndim != 1 or (found.size and (found[-1] >= layout.rows or found[0] < 0 or not (np.diff(found) > 0).all())):
        raise CodecError(f"a worker requests rows by numbers that do not ascend, or are not below {layout.rows}")
    return found


def _layout_of(encoded: Encoded) -> RowLayout:
    runs = array(encoded, 1, np.uint32)
    counts, widths = (part.tolist() for part in np.split(runs, 2)) if runs.size % 2 == 0 else ([], [])
    if 0 in counts or 0 in widths or sum(c * w for c, w in zip(counts, widths, strict=True)) != encoded.size:
        raise CodecError(f"the rows of a {encoded.codec} message do not add up to {encoded.size} elements")
    return RowLayout(tuple(counts), tuple(widths))


def _unpacked(encoded: Encoded, layout: RowLayout) -> SparseRows:
    numbers = np.empty(integer(encoded, "rows", 0, layout.rows), np.int64)
    unpack_indices(encoded, 2, layout.rows, numbers)
    return SparseRows(numbers, finite(encoded, array(encoded, 0, np.float32, layout.elements(numbers)), "values"))
