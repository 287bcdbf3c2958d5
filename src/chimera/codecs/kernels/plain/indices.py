"""The largest elements, nonzero rows, and bitmaps of indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.layout import CHUNK
from chimera.codecs.kernels.plain.base import PIECE, B, U, magnitudes, pieces


def histogram(x: Any, shift: Any, prefix: Any, prefix_shift: Any, counts: Any) -> None:
    for piece in pieces(x.size):
        magnitude = magnitudes(x[piece])
        magnitude = magnitude[(magnitude >> U(prefix_shift)) == prefix]
        bins = (magnitude >> U(shift)) & U(counts.shape[1] - 1)
        counts[0] += np.bincount(bins, minlength=counts.shape[1])


def select(x: Any, bits: Any, ties: int, indices: Any, values: Any) -> int:
    count = 0
    for piece in pieces(x.size):
        magnitude = magnitudes(x[piece])
        hit = magnitude > bits
        equal = np.flatnonzero(magnitude == bits)[:ties]
        hit[equal] = True
        ties -= equal.size
        found = np.flatnonzero(hit)[: max(indices.size - count, 0)] + piece.start
        indices[count : count + found.size], values[count : count + found.size] = found, x[found]
        count += int(hit.sum())
    return count


def to_bitmap(indices: Any, bitmap: Any) -> None:
    bitmap[:] = 0
    np.bitwise_or.at(bitmap, indices >> 3, (1 << (indices & 7)).astype(B))


def from_bitmap(bitmap: Any, indices: Any) -> int:
    count = 0
    for low in range(0, bitmap.size, CHUNK):
        found = np.flatnonzero(np.unpackbits(bitmap[low : low + CHUNK], bitorder="little")) + 8 * low
        room = found[: max(indices.size - count, 0)]
        indices[count : count + room.size] = room
        count += found.size
    return count


def nonzero_rows(x: Any, width: int, flags: Any) -> None:
    step = max(PIECE // width, 1)
    for low in range(0, flags.size, step):
        rows = flags[low : low + step]
        piece = x.view(U)[low * width : (low + rows.size) * width].reshape(rows.size, width)
        np.any(piece, axis=1, out=rows.view(np.bool_))
