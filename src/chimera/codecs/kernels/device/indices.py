"""The largest elements, and bitmaps of indices."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from chimera.codecs.kernels.device.base import magnitudes, pieces, read, write
from chimera.core.device import to_host


def histogram(x: Tensor, shift: Any, prefix: Any, prefix_shift: Any, counts: NDArray[Any]) -> None:
    for piece in pieces(len(x)):
        magnitude = magnitudes(x[piece])
        if prefix_shift < 31:
            magnitude = magnitude[magnitude >> int(prefix_shift) == int(prefix)]
        bins = magnitude >> int(shift) & (counts.shape[1] - 1)
        counts[0] += to_host(torch.bincount(bins, minlength=counts.shape[1]))


def select(x: Tensor, bits: Any, ties: int, indices: Tensor, values: Tensor) -> int:
    count, border = 0, int(bits)
    for piece in pieces(len(x)):
        magnitude = magnitudes(x[piece])
        hit = magnitude > border
        if ties > 0:
            equal = (magnitude == border).nonzero()[:ties, 0]
            hit[equal] = True
            ties -= len(equal)
        found = hit.nonzero()[: max(len(indices) - count, 0), 0]
        own = slice(count, count + len(found))
        indices[own], values[own] = found + piece.start, x[piece][found]
        count += int(hit.count_nonzero())
    return count


def to_bitmap(indices: Tensor, bitmap: NDArray[Any]) -> None:
    bits = torch.zeros(8 * bitmap.size, dtype=torch.uint8, device=indices.device)
    bits[indices] = 1
    rows = bits.view(-1, 8)
    for i in range(1, 8):
        rows[:, 0] |= rows[:, i] << i
    write(rows[:, 0], bitmap)


def from_bitmap(bitmap: NDArray[Any], indices: Tensor) -> int:
    own, count = read(bitmap, indices), 0
    for piece in pieces(len(own)):
        bits = own[piece, None] >> torch.arange(8, dtype=torch.uint8, device=own.device) & 1
        found = bits.reshape(-1).nonzero()[:, 0]
        room = found[: max(len(indices) - count, 0)]
        indices[count : count + len(room)] = room + 8 * piece.start
        count += len(found)
    return count
