"""What all compiled kernels are made with. Importing it costs numba: only kernels do."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

F, N, U, B, H = np.float32, np.int32, np.uint32, np.uint8, np.uint16


def njit(function: Any, *, forceinline: bool = False, fastmath: Any = False) -> Any:
    """Compile, once for all runs where the disk takes it."""
    options = {"nogil": True, "error_model": "numpy", "forceinline": forceinline, "fastmath": fastmath}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to write to
        return numba.njit(**options)(function)


def inlined(function: Any) -> Any:
    """Compile into whoever calls it: what is called once a block costs less than handing over its arrays."""
    return njit(function, forceinline=True)


def reordered(function: Any) -> Any:
    """Compile with sums taken in whatever order is fast on this processor; NaN and infinity stay what they are."""
    return njit(function, fastmath={"reassoc", "contract", "nsz"})


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


@intrinsic
def prefetch(typing: Any, x: Any, begin: Any, count: Any) -> Any:
    """Ask for the memory of ``count`` float32 from an index on, as far as the array has them, and do not wait for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        size = builder.extract_value(source.shape, 0)
        end = builder.add(arguments[1], arguments[2])
        end = builder.select(builder.icmp_signed("<", end, size), end, size)
        number = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        with cgutils.for_range_slice(builder, arguments[1], end, ir.Constant(end.type, 16), inc=True) as (index, _):
            place = builder.bitcast(builder.gep(source.data, [index]), pointer)
            builder.call(fetch, [place, number(0), number(2), number(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return numba.types.void(x, numba.types.intp, numba.types.intp), generate
