"""What all compiled kernels are made with."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16


def njit(function: Any) -> Any:
    """Compile, once for all runs where the disk takes it."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is no folder to write to
        return numba.njit(nogil=True, error_model="numpy")(function)


@intrinsic
def as_bits(typing: Any, value: Any) -> Any:
    """Return the bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.types.uint32(numba.types.float32), generate


@intrinsic
def as_float(typing: Any, value: Any) -> Any:
    """Return the float32 that has these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.types.float32(numba.types.uint32), generate
