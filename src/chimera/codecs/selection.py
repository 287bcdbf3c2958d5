"""Selection of the elements of largest magnitude, without sorting and without a copy of the vector."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels import kernels
from chimera.core.device import empty
from chimera.core.parameters import Flat

_SAMPLE = 1 << 16
_DIGITS = ((20, 11), (10, 10), (0, 10))  # digits of a magnitude's bits: the first bit, and the number of bits


def kth_largest(vector: Flat, count: int) -> tuple[int, int]:
    """Return the bits of the ``count``-th largest magnitude, and how many elements equal to it are among the largest ``count``.

    Three passes count magnitudes: the first by the upper bits, the others by the next bits, among the magnitudes with equal
    upper bits.
    """
    k, prefix, left = kernels(vector), 0, count
    for shift, digits in _DIGITS:
        counts = np.zeros((4, 1 << digits), np.int64)
        k.histogram(vector, np.uint32(shift), np.uint32(prefix), np.uint32(shift + digits), counts)
        above = np.cumsum(counts.sum(axis=0)[::-1])
        place = int(np.searchsorted(above, left))
        left -= int(above[place - 1]) if place else 0
        prefix = prefix << digits | (1 << digits) - 1 - place
    return prefix, left


def empty_selection(count: int, vector: Flat) -> tuple[NDArray[np.int64], Flat]:
    """Return memory for ``count`` indices and values, on the device of the vector."""
    return empty(count, "int64", vector), empty(count, "float32", vector)


def select_exact(vector: Flat, count: int) -> tuple[NDArray[np.int64], Flat]:
    """Return indices and values of the ``count`` largest magnitudes; of equal magnitudes, the first.

    Candidates are elements above a threshold that a sample gives, with a margin. If there are too few, the whole vector is
    used.
    """
    near = _preselect(vector, count)
    values = vector if near is None else near[1]
    indices, found = empty_selection(count, vector)
    if count:
        bits, ties = kth_largest(values, count)
        kernels(vector).select(values, np.uint32(bits), ties, indices, found)
    return indices if near is None else near[0][indices], found


def _preselect(vector: Flat, count: int) -> tuple[NDArray[np.int64], Flat] | None:
    stride = len(vector) // _SAMPLE
    if stride < 2 or not 0 < count <= len(vector) // 8:
        return None
    sample = abs(vector[::stride])
    expected = count * len(sample) / len(vector)
    error = 4 * math.sqrt(expected) + 4
    bits, _ = kth_largest(sample, round(expected + error))
    return _select_above(vector, bits, count, round((expected + 2 * error) * stride))


def select_sampled(vector: Flat, count: int, offset: int) -> tuple[NDArray[np.int64], Flat]:
    """Return about ``count`` of the largest magnitudes: those above a threshold that a sample of the vector gives.

    If the number is wrong by more than half, the selection is exact. ``offset`` shifts the sample.
    """
    stride = len(vector) // _SAMPLE
    if stride < 2 or not count:
        return select_exact(vector, count)
    sample = abs(vector[offset % stride :: stride])
    bits, _ = kth_largest(sample, max(round(count * len(sample) / len(vector)), 1))
    half = count // 2
    return _select_above(vector, bits, half, count + half + 64) or select_exact(vector, count)


def _select_above(vector: Flat, bits: int, at_least: int, at_most: int) -> tuple[NDArray[np.int64], Flat] | None:
    """Return indices and values from a magnitude on, if their number is within the limits; else None."""
    indices, values = empty_selection(at_most, vector)
    found = kernels(vector).select(vector, np.uint32(bits), len(vector), indices, values)
    return (indices[:found], values[:found]) if at_least <= found <= at_most else None


def count_of(size: int, ratio: float) -> int:
    """Return the number of elements for a ratio, at least one."""
    return min(max(round(ratio * size), 1), size)
