"""The common part of all kernels in NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.layout import SPAN

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16
PIECE = 64 * SPAN  # elements at a time, so that no temporary has the full size


def pieces(size: int) -> Iterator[slice]:
    """Yield slices of a vector."""
    for low in range(0, size, PIECE):
        yield slice(low, min(low + PIECE, size))


def magnitudes(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of the magnitudes."""
    return x.view(U) & U(0x7FFFFFFF)
