"""The keys of the random numbers of messages."""

from __future__ import annotations

import numpy as np

_MASK = (1 << 64) - 1


def key_of(seed: int, count: int) -> tuple[np.uint32, np.uint32]:
    """Return two words computed from seed and count (SplitMix64)."""
    x = _mixed(_mixed(seed & _MASK) + count)
    return np.uint32(x & 0xFFFFFFFF), np.uint32(x >> 32)


def _mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
