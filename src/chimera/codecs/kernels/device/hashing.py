"""Random numbers by counting, see `compiled.hashing`: 32 bits in int64, whose products keep the lower half."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chimera.codecs.kernels.device.base import pieces, write

_WORD = 0xFFFFFFFF
_C1, _C2 = 0x7FEB352D, 0x846CA68B - (1 << 32)  # the second is negative, so that no product leaves int64


def random_words(begin: int, size: int, first: Any, second: Any, like: Tensor) -> Tensor:
    """Return the random words of ``size`` indices from ``begin`` on, 0 to 2**32 - 1, as int64, where ``like`` lies."""
    index = torch.arange(begin, begin + size, dtype=torch.int64, device=like.device) & _WORD
    x = (index * _C1 & _WORD) + int(first) & _WORD
    x ^= x >> 15
    return (x * _C2 & _WORD) + int(second) & _WORD


def random_bits(first: Any, second: Any, begin: int, out: Any) -> None:
    """See `compiled`, here and in all modules."""
    for piece in pieces(len(out)):
        write(random_words(begin + piece.start, piece.stop - piece.start, first, second, out), out[piece])
