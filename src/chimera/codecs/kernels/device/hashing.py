"""Counter-based random numbers, see `compiled.hashing`: 32 bits in int64, whose products keep the lower half."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chimera.codecs.kernels.device.base import pieces, write
from chimera.codecs.kernels.layout import PAIR_DISTANCE

_WORD = 0xFFFFFFFF
_STEP = 0x7FEB352D
_EARLY, _LATE = 0x846CA68B - (1 << 32), (0x846CA68B * 0xADB4A92D & _WORD) - (1 << 32)
"""These numbers are negative, so that no product overflows int64."""


def random_words(begin: int, size: int, first: Any, second: Any, like: Tensor) -> Tensor:
    """Return the random words of ``size`` elements, from the start of a tensor or chunk on.

    The start is element ``begin`` of all elements. The words are 0 to 2**32 - 1, as int64, on the device of ``like``.
    """
    place = torch.arange(size, dtype=torch.int64, device=like.device)
    late = place % (2 * PAIR_DISTANCE) >= PAIR_DISTANCE
    index = begin + place - late * PAIR_DISTANCE & _WORD
    x = (index * _STEP & _WORD) + int(first) & _WORD
    x ^= x >> 15 ^ int(second)
    return x * torch.where(late, _LATE, _EARLY) & _WORD


def random_bits(first: Any, second: Any, begin: int, out: Any) -> None:
    """See `compiled`, here and in all modules."""
    for piece in pieces(len(out)):
        write(random_words(begin + piece.start, piece.stop - piece.start, first, second, out), out[piece])
