"""Largest magnitudes, sums and norms of a vector, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from chimera.codecs.kernels.compiled.bits import pack_signs
from chimera.codecs.kernels.compiled.lanes import (
    FLOATS,
    LANES,
    LONG,
    SOON,
    WORD,
    WORDS,
    Lanes,
    data_of,
    fetch,
    to_line,
)
from chimera.codecs.kernels.layout import ABSOLUTE, BLOCK, SQUARE, SUMMED_ELEMENTS
from chimera.core.jit import F, U, as_float, inlined, njit

_LITTLE = 1e-30


class _Term(NamedTuple):
    """The value computed from 16 elements, given as words, and the operation that adds it to a total."""

    kind: Any
    make: Callable[[Lanes], Lanes]
    add: Callable[[Lanes, Lanes], Lanes]


def _magnitude(words: Lanes) -> Lanes:
    return words & 0x7FFFFFFF


def _square(words: Lanes) -> Lanes:
    return words.floats() * words.floats()


_PLAIN = _Term(FLOATS, Lanes.floats, Lanes.__add__)
_ABSOLUTE = _Term(FLOATS, lambda words: _magnitude(words).floats(), Lanes.__add__)
_SQUARE = _Term(FLOATS, _square, Lanes.__add__)
_TOP = _Term(WORDS, _magnitude, Lanes.larger)
_NEGATIVE = _Term(WORDS, lambda words: words >> 31, Lanes.__add__)


class _Totals:
    """Four vectors for each term. The caller fixes the order of additions, on any machine.

    The vectors stay in registers. LLVM does not vectorize sums of floats unless it may reorder them; with reordering, the sum
    would depend on the machine.
    """

    def __init__(self, builder: Any, terms: Sequence[_Term]) -> None:
        self._builder, self._terms = builder, terms
        self._places = [[cgutils.alloca_once(builder, term.kind) for _ in range(4)] for term in terms]
        for term, places in zip(terms, self._places, strict=True):
            for place in places:
                builder.store(ir.Constant(term.kind, [0] * LANES), place)

    def add(self, source: Any, steps: Any, *, quarters: bool) -> None:
        """Add 64 elements a step: element i in lane i modulo 64, or 16 of each of four ``quarters``.

        With four places at once, the hardware prefetches more memory; in order, this function prefetches it.
        """
        builder = self._builder
        apart = builder.mul(steps, LONG(LANES))
        with cgutils.for_range(builder, steps) as loop:
            for i in range(4):
                at = builder.mul(loop.index, LONG(LANES if quarters else 64))
                at = builder.add(at, builder.mul(apart, LONG(i)) if quarters else LONG(LANES * i))
                place = builder.gep(source, [at])
                if not quarters:
                    fetch(builder, builder.gep(place, [LONG(SOON)]))
                words = Lanes.at(builder, place, WORDS)
                for term, places in zip(self._terms, self._places, strict=True):
                    total = Lanes(builder, builder.load(places[i]))
                    builder.store(term.add(total, term.make(words)).value, places[i])

    def folded(self) -> list[Any]:
        """Return the 64 lanes of each term, added by halves."""
        return [self._folded(term, places) for term, places in zip(self._terms, self._places, strict=True)]

    def _folded(self, term: _Term, places: Sequence[Any]) -> Any:
        b = self._builder
        first, second, third, fourth = (Lanes(b, b.load(place)) for place in places)
        lanes = term.add(term.add(first, third), term.add(second, fourth))
        for half in (8, 4, 2, 1):
            kind = ir.VectorType(WORD, half)
            lower, upper = (
                Lanes(
                    b, b.shuffle_vector(lanes.value, lanes.value, ir.Constant(kind, list(range(begin, begin + half))))
                )
                for begin in (0, half)
            )
            lanes = term.add(lower, upper)
        return b.extract_element(lanes.value, WORD(0))


def _fold(term: _Term, result: Any, *, quarters: bool = False) -> Any:
    """Return an intrinsic that adds the terms of 64 ``steps`` elements from ``begin`` on, in order or quarters at once."""

    @intrinsic
    def fold(typing: Any, x: Any, begin: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
            totals = _Totals(builder, [term])
            totals.add(source, arguments[2], quarters=quarters)
            return totals.folded()[0]

        return result(x, numba.types.intp, numba.types.intp), generate

    return fold


sum_of_squares = _fold(_SQUARE, numba.types.float32)
"""Return the sum of squares of 64 ``steps`` elements from ``begin`` on."""
largest_of = _fold(_TOP, numba.types.uint32)
"""Return the bits of their largest magnitude."""
_largest_of_quarters = _fold(_TOP, numba.types.uint32, quarters=True)


def _sums(*terms: _Term, quarters: bool) -> Any:
    """Return an intrinsic that writes the sums of terms over 64 ``steps`` elements, and ``more`` times those in ``pad``.

    Terms are added in order or ``quarters`` at once.
    """

    @intrinsic
    def add(typing: Any, x: Any, steps: Any, pad: Any, more: Any, found: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, rest, buffer = (data_of(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 4))
            totals = _Totals(builder, terms)
            totals.add(source, arguments[1], quarters=quarters)
            totals.add(rest, arguments[3], quarters=False)
            for i, total in enumerate(totals.folded()):
                builder.store(total, builder.bitcast(builder.gep(buffer, [LONG(i)]), total.type.as_pointer()))
            return context.get_dummy_value()

        return numba.types.void(x, numba.types.intp, pad, numba.types.intp, found), generate

    return add


_add_block_squares = _sums(_SQUARE, quarters=False)
_add_magnitudes, _add_squares = _sums(_ABSOLUTE, quarters=True), _sums(_SQUARE, quarters=True)
_add_all = _sums(_PLAIN, _ABSOLUTE, _SQUARE, _TOP, _NEGATIVE, quarters=True)


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
    """Return the largest magnitude; nonfinite values count as larger than all numbers.

    The last block comes first, so that the first block is in the cache for the next pass. Four parts of a block are read at
    once, because processors then prefetch more memory.
    """
    begin = min(to_line(x), x.size)
    full = (x.size - begin) // BLOCK
    top = max(largest_bits(x[:begin]), largest_bits(x[begin + full * BLOCK :]))
    for block in range(full - 1, -1, -1):
        top = max(top, _largest_of_quarters(x, begin + block * BLOCK, BLOCK // 64))
    return as_float(top)


@njit
def moments(x: Any, bounds: Any, backwards: Any, columns: Any, signs: Any, table: Any) -> None:
    """Write the moments of each tensor: sums of x, |x| and x squared, largest magnitude, count of sign bits.

    ``bounds`` holds the bounds of the tensors, and ``table`` has shape (tensors, 5). ``columns`` selects moments (see
    `layout`); the others are zero. Sums are added stretch by stretch, within each in lanes of float32, with its quarters at
    once. Sums are recomputed exactly if float32 does not suffice. If ``signs`` has room, it receives the sign bits.
    """
    table[:] = 0
    room = np.empty(69, F)
    blocks = (x.size + BLOCK - 1) // BLOCK
    for i in range(blocks):
        begin = (blocks - 1 - i if backwards else i) * BLOCK
        end = min(begin + BLOCK, x.size)
        t = np.searchsorted(bounds, begin, side="right") - 1
        for low in range(begin, end, SUMMED_ELEMENTS):
            high = min(low + SUMMED_ELEMENTS, end)
            while bounds[t] < high:
                _add_moments(x[max(low, bounds[t]) : min(high, bounds[t + 1])], columns, room, table[t])
                t += 1
            t -= bounds[t] > high  # a tensor that continues in the next stretch
            if signs.size:
                pack_signs(x[low:high], signs[low // 8 :])
    for t in range(bounds.size - 1):
        row, n = table[t], bounds[t + 1] - bounds[t]
        _keep_only(columns, row)
        short = columns & SQUARE and not row[2] >= _LITTLE * n
        if short or not np.isfinite(row[0] + row[1] + row[2]):
            _exact_moments(x[bounds[t] : bounds[t + 1]], row)
            _keep_only(columns, row)


@inlined
def _keep_only(columns: Any, row: Any) -> None:
    for j in range(5):
        if not columns & (1 << j):
            row[j] = 0


@inlined
def _padded(x: Any, pad: Any) -> Any:
    """Copy the elements after the last 64 * n to ``pad``, padded with zeros; return n, and whether there are any."""
    steps = x.size // 64
    rest = x[steps * 64 :]
    if rest.size:
        pad[:] = 0
        for i in range(rest.size):  # a slice that is assigned to another takes two seconds to compile
            pad[i] = rest[i]
    return steps, int(rest.size > 0)


@njit
def _add_moments(x: Any, columns: Any, room: Any, row: Any) -> None:
    """Add the moments of a piece of a tensor to its row; ``room`` is scratch memory for 64 elements and five sums."""
    pad, found = room[:64], room[64:]
    steps, more = _padded(x, pad)
    words, top = found.view(U), U(0)
    if columns == ABSOLUTE:
        _add_magnitudes(x, steps, pad, more, found)
        row[1] += found[0]
    elif columns == SQUARE:
        _add_squares(x, steps, pad, more, found)
        row[2] += found[0]
    else:  # all: a loop for three of the five was no faster
        _add_all(x, steps, pad, more, found)
        row[0] += found[0]
        row[1] += found[1]
        row[2] += found[2]
        top = words[3]
        row[4] += words[4]
    row[3] = max(row[3], np.float64(as_float(top))) if top <= U(0x7F800000) else np.inf


@inlined
def square_sum(x: Any, room: Any) -> Any:
    """Return the sum of squares of a block, in order; ``room`` is scratch memory for 64 elements and a sum."""
    pad, found = room[:64], room[64:]
    steps, more = _padded(x, pad)
    _add_block_squares(x, steps, pad, more, found)
    return found[0]


@njit
def _exact_moments(x: Any, row: Any) -> None:
    row[0], row[1], row[2] = 0, 0, 0
    for i in range(x.size):
        v = np.float64(x[i])
        row[0] += v
        row[1] += abs(v)
        row[2] += v * v
