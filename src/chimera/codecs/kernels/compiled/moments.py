"""What one pass tells of a vector: largest magnitudes, sums, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from chimera.codecs.kernels.compiled.bits import pack_signs
from chimera.codecs.kernels.layout import BLOCK, CHUNK
from chimera.core.jit import F, U, as_bits, as_float, inlined, njit

_LITTLE = 1e-30


_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(32), 16)


class _Term:
    """What is made of 16 elements, given as words, and how that is added to a total of its kind."""

    def __init__(self, kind: Any, make: Callable[[Any, Any], Any], add: Callable[[Any, Any, Any], Any]) -> None:
        self.kind, self.make, self.add = kind, make, add


def _magnitude(builder: Any, words: Any) -> Any:
    return builder.and_(words, ir.Constant(_WORDS, [0x7FFFFFFF] * 16))


def _sign(builder: Any, words: Any) -> Any:
    return builder.lshr(words, ir.Constant(_WORDS, [31] * 16))


def _square(builder: Any, words: Any) -> Any:
    value = builder.bitcast(words, _FLOATS)
    return builder.fmul(value, value)


def _fadd(builder: Any, one: Any, other: Any) -> Any:
    return builder.fadd(one, other)


def _add(builder: Any, one: Any, other: Any) -> Any:
    return builder.add(one, other)


def _maximum(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_unsigned(">", one, other), one, other)


_PLAIN = _Term(_FLOATS, lambda builder, words: builder.bitcast(words, _FLOATS), _fadd)
_ABSOLUTE = _Term(_FLOATS, lambda builder, words: builder.bitcast(_magnitude(builder, words), _FLOATS), _fadd)
_SQUARE = _Term(_FLOATS, _square, _fadd)
_TOP, _NEGATIVE = _Term(_WORDS, _magnitude, _maximum), _Term(_WORDS, _sign, _add)


def _totals(builder: Any, source: Any, steps: Any, terms: Sequence[_Term]) -> list[list[Any]]:
    """Add the terms of 64 elements a step, the i-th in lane i modulo 64; return the lanes of each term, 16 and 16.

    Totals stay in registers, and the order is this one: without leave to reorder, LLVM keeps sums of floats scalar; with it,
    the sum would depend on the machine.
    """
    totals = [[cgutils.alloca_once(builder, term.kind) for _ in range(4)] for term in terms]
    for term, places in zip(terms, totals, strict=True):
        for place in places:
            builder.store(ir.Constant(term.kind, [0] * 16), place)
    with cgutils.for_range(builder, steps) as loop:
        for i in range(4):
            at = builder.add(builder.mul(loop.index, loop.index.type(64)), loop.index.type(16 * i))
            words = builder.load(builder.bitcast(builder.gep(source, [at]), _WORDS.as_pointer()), align=4)
            for term, places in zip(terms, totals, strict=True):
                builder.store(term.add(builder, builder.load(places[i]), term.make(builder, words)), places[i])
    return [[builder.load(place) for place in places] for places in totals]


def _lane_sums(*terms: _Term) -> Any:
    """Return an intrinsic that goes through ``steps`` times 64 elements, and writes 64 lanes for each term."""

    @intrinsic
    def add(typing: Any, x: Any, steps: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, target = (
                context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 2)
            )
            totals = _totals(builder, source, arguments[1], terms)
            for i, total in enumerate(each for of_term in totals for each in of_term):
                place = builder.gep(target, [ir.IntType(64)(16 * i)])
                builder.store(total, builder.bitcast(place, total.type.as_pointer()), align=4)
            return context.get_dummy_value()

        return numba.types.void(x, numba.types.intp, lanes), generate

    return add


_add_magnitudes, _add_squares = _lane_sums(_ABSOLUTE), _lane_sums(_SQUARE)
_add_all = _lane_sums(_PLAIN, _ABSOLUTE, _SQUARE, _TOP, _NEGATIVE)


def _fold(term: _Term, result: Any) -> Any:
    """Return an intrinsic that adds the terms of 64 ``steps`` elements from ``begin`` on, and the 64 lanes by halves."""

    @intrinsic
    def fold(typing: Any, x: Any, begin: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            ((a, b, c, d),) = _totals(builder, builder.gep(data, [arguments[1]]), arguments[2], [term])
            lanes = term.add(builder, term.add(builder, a, c), term.add(builder, b, d))
            for half in (8, 4, 2, 1):
                kind = ir.VectorType(ir.IntType(32), half)
                lower, upper = (
                    builder.shuffle_vector(lanes, lanes, ir.Constant(kind, list(range(first, first + half))))
                    for first in (0, half)
                )
                lanes = term.add(builder, lower, upper)
            return builder.extract_element(lanes, ir.IntType(32)(0))

        return result(x, numba.types.intp, numba.types.intp), generate

    return fold


sum_of_squares = _fold(_SQUARE, numba.types.float32)
"""Return the sum of squares of 64 ``steps`` elements from ``begin`` on."""
largest_of = _fold(_TOP, numba.types.uint32)
"""Return the bits of their largest magnitude."""


@inlined
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
    for block in range((x.size + BLOCK - 1) // BLOCK - 1, -1, -1):
        top = max(top, largest_bits(x[block * BLOCK : (block + 1) * BLOCK]))
    return as_float(top)


@njit
def look(x: Any, bounds: Any, backwards: Any, full: Any, signs: Any, table: Any) -> None:
    """Write what is known of each tensor: sums of x, |x| and x squared, largest magnitude, count of sign bits.

    ``bounds`` says where the tensors begin and end, ``table`` has shape (tensors, 5). Sums are added chunk by chunk, within a
    chunk in lanes of float32, and exactly where that was too short. If ``signs`` has room, the sign bits go there too.
    Without ``full`` only the sum of |x| is found.
    """
    table[:] = 0
    lanes = np.empty(320, F)
    blocks = (x.size + BLOCK - 1) // BLOCK
    for i in range(blocks):
        begin = (blocks - 1 - i if backwards else i) * BLOCK
        end = min(begin + BLOCK, x.size)
        t = np.searchsorted(bounds, begin, side="right") - 1
        for low in range(begin, end, CHUNK):
            high = min(low + CHUNK, end)
            while bounds[t] < high:
                piece = x[max(low, bounds[t]) : min(high, bounds[t + 1])]
                if full:
                    _look_at(piece, lanes, table[t])
                else:
                    _look_briefly(piece, lanes, table[t])
                t += 1
            t -= bounds[t] > high  # a tensor that goes on in the next chunk
            if signs.size:
                pack_signs(x[low:high], signs[low // 8 :])
    for t in range(bounds.size - 1):
        row, n = table[t], bounds[t + 1] - bounds[t]
        if not np.isfinite(row[1]) or (full and (not np.isfinite(row[2]) or row[2] < _LITTLE * n)):
            _look_exactly(x[bounds[t] : bounds[t + 1]], row)


@inlined
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
    """Add what is in a piece of a tensor to its row; ``lanes`` is room for five times 64 totals."""
    steps = x.size // 64
    rest, words = x[steps * 64 :], lanes[192:].view(U)
    _add_all(x, steps, lanes)
    for j in range(rest.size):
        lanes[j] += rest[j]
        lanes[64 + j] += abs(rest[j])
        lanes[128 + j] += F(rest[j] * rest[j])
    for i in range(3):
        row[i] += _add_halves(lanes[64 * i : 64 * i + 64])
    top, count = largest_bits(rest), U(0)
    for j in range(64):
        top = max(top, words[j])
        count = U(count + words[64 + j])
    for j in range(rest.size):
        count = U(count + U(as_bits(rest[j]) >> U(31)))
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


@inlined
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
