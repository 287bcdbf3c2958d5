"""Counter-based random numbers, see `compiled.hashing`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.layout import PAIR_DISTANCE
from chimera.codecs.kernels.plain.base import F, U

_EARLY, _LATE = U(0x846CA68B), U(0x846CA68B * 0xADB4A92D & 0xFFFFFFFF)


def random_words(begin: int, size: int, first: Any, second: Any) -> NDArray[np.uint32]:
    """Return the random bits of elements from the start of a tensor or chunk on, which is number ``begin`` of all elements."""
    place = np.arange(size, dtype=np.int64)
    late = place % (2 * PAIR_DISTANCE) >= PAIR_DISTANCE
    x = (begin + place - np.where(late, PAIR_DISTANCE, 0)).astype(U) * U(0x7FEB352D) + U(first)
    return (x ^ (x >> U(15)) ^ U(second)) * np.where(late, _LATE, _EARLY)


def unit(begin: int, size: int, first: Any, second: Any, mask: int = 0x7FFFFF) -> NDArray[np.float32]:
    """Return random numbers in [1, 2)."""
    return ((random_words(begin, size, first, second) >> U(9)) & U(mask) | U(0x3F800000)).view(F)


def random_bits(first: Any, second: Any, begin: int, out: NDArray[np.uint32]) -> None:
    """See `compiled`, here and in all modules."""
    np.copyto(out, random_words(begin, out.size, first, second))
