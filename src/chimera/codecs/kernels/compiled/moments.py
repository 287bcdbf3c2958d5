"""What one pass tells of a vector: largest magnitudes, sums, norms."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from chimera.codecs.kernels.compiled.base import F, U, as_float, njit
from chimera.codecs.kernels.compiled.bits import pack_signs
from chimera.codecs.kernels.layout import BLOCK as _BLOCK
from chimera.codecs.kernels.layout import CHUNK

_LITTLE = 1e-30


def _lane_sum(term: Any) -> Any:
    """Return an intrinsic that adds a term of each element, i-th in lane i modulo 64, in registers and in this order.

    Without leave to reorder, LLVM keeps sums of floats scalar; with it, the sum would depend on the machine.
    """

    @intrinsic
    def add(typing: Any, x: Any, steps: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, target = (
                context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 2)
            )
            kind = ir.VectorType(ir.FloatType(), 16)
            zero = ir.Constant(kind, [0.0] * 16)
            totals = [cgutils.alloca_once_value(builder, zero) for _ in range(4)]
            with cgutils.for_range(builder, arguments[1]) as loop:
                for i, total in enumerate(totals):
                    at = builder.add(builder.mul(loop.index, loop.index.type(64)), loop.index.type(16 * i))
                    place = builder.bitcast(builder.gep(source, [at]), kind.as_pointer())
                    value = term(builder, builder.load(place, align=4), kind)
                    builder.store(builder.fadd(builder.load(total), value), total)
            for i, total in enumerate(totals):
                place = builder.gep(target, [ir.IntType(64)(16 * i)])
                builder.store(builder.load(total), builder.bitcast(place, kind.as_pointer()), align=4)
            return context.get_dummy_value()

        return numba.types.void(x, numba.types.intp, lanes), generate

    return add


def _magnitude_of(builder: Any, value: Any, kind: Any) -> Any:
    words = ir.VectorType(ir.IntType(32), 16)
    mask = ir.Constant(words, [0x7FFFFFFF] * 16)
    return builder.bitcast(builder.and_(builder.bitcast(value, words), mask), kind)


def _itself(builder: Any, value: Any, kind: Any) -> Any:
    return value


def _square_of(builder: Any, value: Any, kind: Any) -> Any:
    return builder.fmul(value, value)


_add_plain, _add_squares = _lane_sum(_itself), _lane_sum(_square_of)
_add_magnitudes = _lane_sum(_magnitude_of)


@njit
def largest_bits(x: Any) -> Any:
    """Return the bits of the largest magnitude."""
    u = x.view(U)
    top = U(0)
    for i in range(u.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
    return top


@njit
def abs_max(x: Any) -> Any:
    """Return the largest magnitude; what is not finite counts as larger than all numbers.

    It begins with the last block, so that the first is in the cache for the pass that comes next.
    """
    top = U(0)
    for block in range((x.size + _BLOCK - 1) // _BLOCK - 1, -1, -1):
        top = max(top, largest_bits(x[block * _BLOCK : (block + 1) * _BLOCK]))
    return as_float(top)


@njit
def look(x: Any, bounds: Any, backwards: Any, full: Any, signs: Any, table: Any) -> None:
    """Write what is known of each tensor: sums of x, |x| and x squared, largest magnitude, count of sign bits.

    ``bounds`` says where the tensors begin and end, ``table`` has shape (tensors, 5). Sums are added chunk by chunk, within a
    chunk in lanes of float32, and exactly where that was too short. If ``signs`` has room, the sign bits go there too.
    Without ``full`` only the sum of |x| is found.
    """
    table[:] = 0
    lanes = np.empty(64, F)
    chunks = (x.size + CHUNK - 1) // CHUNK
    tensor = bounds.size - 2 if backwards else 0
    for i in range(chunks):
        chunk = chunks - 1 - i if backwards else i
        low, high = chunk * CHUNK, min((chunk + 1) * CHUNK, x.size)
        while backwards and tensor > 0 and bounds[tensor] > low:
            tensor -= 1
        while not backwards and bounds[tensor + 1] <= low:
            tensor += 1
        t = tensor
        while t < bounds.size - 1 and bounds[t] < high:
            piece = x[max(low, bounds[t]) : min(high, bounds[t + 1])]
            if full:
                _look_at(piece, lanes, table[t])
            else:
                _look_briefly(piece, lanes, table[t])
            t += 1
        if signs.size:
            pack_signs(x[low:high], signs[low // 8 :])
    for t in range(bounds.size - 1):
        row, n = table[t], bounds[t + 1] - bounds[t]
        if not np.isfinite(row[1]) or (full and (not np.isfinite(row[2]) or row[2] < _LITTLE * n)):
            _look_exactly(x[bounds[t] : bounds[t + 1]], row)


@njit
def _add_halves(lanes: Any) -> Any:
    """Return the sum of 64 lanes, added by halves; each length is a constant for the compiler."""
    for j in range(32):
        lanes[j] += lanes[j + 32]
    for j in range(16):
        lanes[j] += lanes[j + 16]
    for j in range(8):
        lanes[j] += lanes[j + 8]
    for j in range(4):
        lanes[j] += lanes[j + 4]
    return F(F(lanes[0] + lanes[2]) + F(lanes[1] + lanes[3]))


@njit
def _look_at(x: Any, lanes: Any, row: Any) -> None:
    """Add what is in a piece of a tensor to its row; ``lanes`` is room for 64 sums."""
    steps = x.size // 64
    rest = x[steps * 64 :]
    u = x.view(U)
    top, count = U(0), U(0)
    for i in range(u.size):
        top = max(top, U(u[i] & U(0x7FFFFFFF)))
        count = U(count + U(u[i] >> U(31)))
    _add_plain(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += rest[j]
    row[0] += _add_halves(lanes)
    _look_briefly(x, lanes, row)
    row[2] += square_sum(x, lanes)
    row[3] = max(row[3], np.float64(as_float(top))) if top <= U(0x7F800000) else np.inf
    row[4] += count


@njit
def _look_briefly(x: Any, lanes: Any, row: Any) -> None:
    steps = x.size // 64
    rest = x[steps * 64 :]
    _add_magnitudes(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += abs(rest[j])
    row[1] += _add_halves(lanes)


@njit
def square_sum(x: Any, lanes: Any) -> Any:
    """Return the sum of squares, in lanes of float32; ``lanes`` is room for 64."""
    steps = x.size // 64
    rest = x[steps * 64 :]
    _add_squares(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += F(rest[j] * rest[j])
    return _add_halves(lanes)


@njit
def _look_exactly(x: Any, row: Any) -> None:
    row[0], row[1], row[2] = 0, 0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        row[0] += v
        row[1] += abs(v)
        row[2] += v * v
