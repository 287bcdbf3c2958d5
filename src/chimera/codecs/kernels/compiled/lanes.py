"""Vectors of 16 words, for loops that compilers do not vectorize: their expressions become vector instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

BYTE, WORD, LONG, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
LANES = 16
SOON = 2048
"""Distance of prefetches in floats. The hardware prefetcher restarts at each page, and is slow if vectors are not aligned to
cache lines."""
WORDS, FLOATS, LINE = ir.VectorType(WORD, LANES), ir.VectorType(FLOAT, LANES), ir.VectorType(BYTE, 64)


class Lanes:
    """A vector of 16 values with element-wise operators; the other operand may be a Python number."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @classmethod
    def of(cls, builder: Any, scalar: Any) -> Lanes:
        """Return lanes that all hold one value: 64 lanes for a byte."""
        count = 64 if scalar.type == BYTE else LANES
        one = builder.insert_element(ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined), scalar, WORD(0))
        return cls(builder, builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(WORD, count), [0] * count)))

    @classmethod
    def at(cls, builder: Any, place: Any, kind: Any = FLOATS) -> Lanes:
        """Return the lanes stored at a place, aligned or not."""
        return cls(builder, builder.load(builder.bitcast(place, kind.as_pointer()), align=4))

    def _other(self, other: Any) -> Any:
        return (
            other.value if isinstance(other, Lanes) else ir.Constant(self.value.type, [other] * self.value.type.count)
        )

    def _with(self, operation: str, other: Any) -> Lanes:
        floats = self.value.type.element == FLOAT and operation in ("add", "mul")
        made = getattr(self.builder, f"f{operation}" if floats else operation)(self.value, self._other(other))
        return Lanes(self.builder, made)

    def __add__(self, other: Any) -> Lanes:
        return self._with("add", other)

    def __mul__(self, other: Any) -> Lanes:
        return self._with("mul", other)

    def __and__(self, other: Any) -> Lanes:
        return self._with("and_", other)

    def __xor__(self, other: Any) -> Lanes:
        return self._with("xor", other)

    def __lshift__(self, other: Any) -> Lanes:
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Lanes:
        """Shift the bits of each word right; zeros enter on the left."""
        return self._with("lshr", other)

    def clipped(self, low: Lanes, high: Lanes) -> Lanes:
        """Return floats clipped to these limits."""
        b = self.builder
        above = b.select(b.fcmp_ordered(">", self.value, low.value), self.value, low.value)
        return Lanes(b, b.select(b.fcmp_ordered("<", above, high.value), above, high.value))

    def larger(self, other: Lanes) -> Lanes:
        """Return the larger of unsigned words."""
        b = self.builder
        return Lanes(b, b.select(b.icmp_unsigned(">", self.value, other.value), self.value, other.value))

    def floats(self) -> Lanes:
        """Return the floats of these bits."""
        return Lanes(self.builder, self.builder.bitcast(self.value, FLOATS))

    def bits(self) -> Lanes:
        """Return the bits of floats."""
        return Lanes(self.builder, self.builder.bitcast(self.value, WORDS))

    def cut(self) -> Lanes:
        """Return floats as integers, truncated."""
        return Lanes(self.builder, self.builder.fptosi(self.value, WORDS))


def bytes_of(four: Sequence[Lanes], number: int) -> Lanes:
    """Return a line of 64 bytes: byte ``number`` of each word of four vectors, the lowest being 0."""
    b = four[0].builder
    parts = [b.bitcast(each.value, LINE) for each in four]
    places = ir.Constant(ir.VectorType(WORD, 32), [4 * i + number for i in range(32)])
    low, high = (b.shuffle_vector(one, other, places) for one, other in zip(parts[::2], parts[1::2], strict=True))
    return Lanes(b, b.shuffle_vector(low, high, ir.Constant(ir.VectorType(WORD, 64), list(range(64)))))


def write_line(line: Lanes, place: Any, *, past: bool) -> None:
    """Write 64 bytes. If ``past``, bypass the caches; the place must then be a multiple of 64.

    The line then need not be read first. The caller calls `settle` before another thread reads it.
    """
    b = line.builder
    stored = b.store(line.value, b.bitcast(place, LINE.as_pointer()), align=64 if past else 1)
    if past:
        stored.set_metadata("nontemporal", b.module.add_metadata([WORD(1)]))


def fetch(builder: Any, place: Any) -> None:
    """Prefetch the memory at a place without waiting; the place may be invalid."""
    pointer = BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, WORD, WORD, WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [builder.bitcast(place, pointer), WORD(0), WORD(3), WORD(1)])  # to read, all caches, data


def data_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the place of an array's first element."""
    return context.make_array(kind)(context, builder, array).data


@intrinsic
def settle(typing: Any) -> Any:
    """Make all writes that bypassed the caches visible to other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return numba.types.void(), generate


@intrinsic
def to_line(typing: Any, x: Any) -> Any:
    """Return the number of elements of an array before the first one at the start of a cache line."""
    size = x.dtype.bitwidth // 8

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.ptrtoint(data_of(context, builder, signature.args[0], arguments[0]), LONG)
        return builder.udiv(builder.and_(builder.neg(place), LONG(63)), LONG(size))

    return numba.types.intp(x), generate
