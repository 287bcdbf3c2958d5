"""The largest elements, nonzero rows, and bitmaps of indices."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

from chimera.core.jit import B, U, njit


@njit
def histogram(x: Any, shift: Any, prefix: Any, prefix_shift: Any, counts: Any) -> None:
    """Count magnitudes by the bits from ``shift`` on, if their upper bits are ``prefix``; counts has shape (4, bins)."""
    u = x.view(U)
    mask = U(counts.shape[1] - 1)
    for i in range(u.size):
        magnitude = U(u[i] & U(0x7FFFFFFF))
        if U(magnitude >> prefix_shift) == prefix:
            counts[i & 3, U(magnitude >> shift) & mask] += 1


@intrinsic
def _above(typing: Any, words: Any, index: Any, bits: Any) -> Any:
    """Return 16 bits: one for each of the 16 magnitudes from an index on, set if it is at least that of ``bits``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.VectorType(ir.IntType(32), 16)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), kind.as_pointer())
        magnitudes = builder.and_(builder.load(place, align=4), ir.Constant(kind, [0x7FFFFFFF] * 16))
        border = ir.Constant(kind, ir.Undefined)
        for i in range(16):
            border = builder.insert_element(border, arguments[2], ir.IntType(32)(i))
        found = builder.icmp_unsigned(">=", magnitudes, border)
        return builder.zext(builder.bitcast(found, ir.IntType(16)), ir.IntType(32))

    return numba.types.uint32(words, numba.types.intp, numba.types.uint32), generate


@intrinsic
def _lowest(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit set; at least one must be."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), ir.IntType(64))

    return numba.types.intp(numba.types.uint32), generate


@njit
def select(x: Any, bits: Any, ties: Any, indices: Any, values: Any) -> Any:
    """Write indices and values of the elements above a magnitude, given by its bits, and of the first ``ties`` equal to it.

    Returns their number, including elements without room in the output.
    """
    u, count, room = x.view(U), 0, indices.size
    whole = u.size // 16 * 16
    for low in range(0, u.size, 16):
        if low < whole:
            hits = _above(u, low, bits)
        else:
            hits = U(0)
            for i in range(u.size - whole):
                hits |= U(U(u[whole + i] & U(0x7FFFFFFF)) >= bits) << U(i)
        while hits:
            i = low + _lowest(hits)
            hits = U(hits & U(hits - U(1)))
            if U(u[i] & U(0x7FFFFFFF)) == bits:
                if ties == 0:
                    continue
                ties -= 1
            if count < room:
                indices[count], values[count] = i, x[i]
            count += 1
    return count


@njit
def to_bitmap(indices: Any, bitmap: Any) -> None:
    """Set the bits of these indices."""
    bitmap[:] = 0
    for i in range(indices.size):
        bitmap[indices[i] >> 3] |= B(1 << (indices[i] & 7))


@njit
def from_bitmap(bitmap: Any, indices: Any) -> Any:
    """Write the indices of the bits set, ascending; return their number, including indices without room in the output."""
    count = 0
    for j in range(bitmap.size):
        byte = U(bitmap[j])
        while byte:
            if count < indices.size:
                indices[count] = 8 * j + _lowest(byte)
            count += 1
            byte = U(byte & U(byte - U(1)))
    return count


@njit
def nonzero_rows(x: Any, width: Any, flags: Any) -> None:
    """Write for each row of ``width`` elements 1 if one of its bits is set (so -0 counts), else 0."""
    u = x.view(U)
    if width == 1:
        for i in range(flags.size):
            flags[i] = u[i] != U(0)
        return
    for i in range(flags.size):
        row, found = u[i * width : (i + 1) * width], U(0)
        for j in range(row.size):
            found |= row[j]
        flags[i] = found != U(0)
