"""The common part of all kernels for devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chimera.codecs.kernels.layout import SPAN
from chimera.core.device import copy_to, to_device_of

PIECE = 2048 * SPAN
"""Elements that are processed at a time, so that wide temporaries do not grow with the vector."""


def pieces(size: int) -> Iterator[slice]:
    """Yield slices of a vector; all but the last are whole chunks."""
    for low in range(0, size, PIECE):
        yield slice(low, min(low + PIECE, size))


def bits_of(x: Tensor) -> Tensor:
    """Return the bits of float32 as int32."""
    return x.view(torch.int32)


def magnitudes(x: Tensor) -> Tensor:
    """Return the bits of the magnitudes as int32, which have the same order; NaN is above infinity."""
    return bits_of(x) & 0x7FFFFFFF


def write(result: Tensor, out: Any) -> None:
    """Copy the result of a kernel to ``out``, possibly on the host; ``out`` may be wider or unsigned."""
    if isinstance(out, Tensor):
        out.copy_(result)
    else:
        copy_to(result.to(_signed(out)), out.view(out.dtype.str.replace("u2", "i2").replace("u4", "i4")))


def read(array: NDArray[Any], like: Tensor) -> Tensor:
    """Copy part of a message to the device of a vector. Unsigned types, which torch hardly supports, become signed."""
    kind = {"u2": np.int16, "u4": np.int32}.get(array.dtype.str[1:])
    found: Tensor = to_device_of(array if kind is None else array.view(kind), like)
    return found


def _signed(out: NDArray[Any]) -> torch.dtype:
    return (
        {1: torch.uint8, 2: torch.int16, 4: torch.int32}[out.dtype.itemsize] if out.dtype.kind == "u" else torch.float32
    )
