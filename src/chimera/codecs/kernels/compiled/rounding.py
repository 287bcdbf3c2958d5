"""Vectorized rounding to levels, to the nearest or at random, in the order of memory, with packing chunk by chunk."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from chimera.codecs.kernels.compiled.hashing import EARLY, LATE, STEP
from chimera.codecs.kernels.compiled.lanes import (
    BYTE,
    FLOAT,
    LANES,
    LINE,
    LONG,
    SOON,
    WORD,
    WORDS,
    Lanes,
    bytes_of,
    data_of,
    fetch,
    write_line,
)
from chimera.codecs.kernels.layout import CHUNK, PAIR_DISTANCE


def _steps(count: int) -> int:
    """Return the difference of states that are ``count`` apart."""
    return count * int(STEP) & 0xFFFFFFFF


def _levels_of(source: Any, here: Lanes, key: Lanes, scale: Lanes, limits: tuple[Lanes, Lanes]) -> Lanes:
    """Draw the levels of 64 elements; each is the highest byte of the result."""
    builder, found = here.builder, dict[int, Lanes]()
    for i in range(0, PAIR_DISTANCE, LANES):
        moved = here + _steps(i)
        mix = (moved ^ (moved >> 15)) ^ key
        for at, multiplier in ((i, EARLY), (i + PAIR_DISTANCE, LATE)):
            values = Lanes.at(builder, builder.gep(source, [LONG(at)]))
            found[at] = (values * scale).clipped(*limits).cut() + (mix * int(multiplier) >> 8)
    return bytes_of([found[at] for at in sorted(found)], 3)


def _write(line: Lanes, place: Any, past: Any) -> None:
    """Write 64 bytes; ``past`` (bypass the caches) is known at run time only."""
    with line.builder.if_else(past) as (so, otherwise):
        with so:
            write_line(line, place, past=True)
        with otherwise:
            write_line(line, place, past=False)


@intrinsic
def draw(
    typing: Any, x: Any, begin: Any, lines: Any, ahead: Any, factor: Any, levels: Any, state: Any, second: Any, past: Any,
    out: Any, place: Any,
) -> Any:  # fmt: skip
    """Draw the codes, one byte each, of 64 ``lines`` elements from ``begin`` on, scaled by ``factor``.

    ``state`` belongs to the first of them. Memory ``ahead`` elements further is prefetched. Codes are written from ``place``
    on; with ``past``, its address must be a multiple of 64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        buffer = builder.gep(data_of(context, builder, signature.args[9], arguments[9]), [arguments[10]])
        top = arguments[5]
        scale, middle = Lanes.of(builder, arguments[4]), Lanes.of(builder, builder.trunc(top, BYTE))
        high = Lanes.of(builder, builder.sitofp(builder.shl(top, WORD(24)), FLOAT))
        counted = Lanes(builder, ir.Constant(WORDS, [_steps(i) for i in range(LANES)]))
        first, key = Lanes.of(builder, arguments[6]) + counted, Lanes.of(builder, arguments[7])
        with cgutils.for_range(builder, arguments[2]) as loop:
            at = builder.shl(loop.index, LONG(6))
            read = builder.gep(source, [at])
            for i in range(0, 64, LANES):
                fetch(builder, builder.gep(read, [builder.add(arguments[3], LONG(i))]))
            here = first + Lanes.of(builder, builder.mul(builder.trunc(at, WORD), WORD(_steps(1))))
            line = _levels_of(read, here, key, scale, (high * -1.0, high)) + middle
            _write(line, builder.gep(buffer, [at]), arguments[8])
        return context.get_dummy_value()

    kind = numba.types
    scalars = kind.float32, kind.int32, kind.uint32, kind.uint32, kind.boolean
    return kind.void(x, kind.intp, kind.intp, kind.intp, *scalars, out, kind.intp), generate


def _packing(width: int) -> Any:
    """Return an intrinsic that packs a chunk of codes of one byte each into ``width`` bits, written as by `draw`."""
    size = CHUNK * width // 8

    @intrinsic
    def pack(typing: Any, codes: Any, past: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, buffer = (data_of(context, builder, signature.args[i], arguments[i]) for i in (0, 2))
            with cgutils.for_range(builder, LONG(size // 64)) as loop:
                at = builder.shl(loop.index, LONG(6))
                places = [builder.gep(source, [builder.add(at, LONG(size * i))]) for i in range(8 // width)]
                line = Lanes.at(builder, places[0], LINE)
                for i, place in enumerate(places[1:], 1):
                    line = line + (Lanes.at(builder, place, LINE) << width * i)
                _write(line, builder.gep(buffer, [at]), arguments[1])
            return context.get_dummy_value()

        return numba.types.void(codes, numba.types.boolean, out), generate

    return pack


pack_fours, pack_twos = _packing(4), _packing(2)


@intrinsic
def round_past(typing: Any, x: Any, begin: Any, lines: Any, factor: Any, shift: Any, out: Any) -> Any:
    """Write the lowest byte of ``x * factor + shift``, the code of the nearest level, of 64 ``lines`` elements.

    Writes bypass the caches; the address of ``out`` must be a multiple of 64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        buffer = data_of(context, builder, signature.args[5], arguments[5])
        scale, middle = (Lanes.of(builder, each) for each in arguments[3:5])
        with cgutils.for_range(builder, arguments[2]) as loop:
            at = builder.shl(loop.index, LONG(6))
            places = [builder.gep(source, [builder.add(at, LONG(i))]) for i in range(0, 64, LANES)]
            for place in places:
                fetch(builder, builder.gep(place, [LONG(SOON)]))
            codes = [(Lanes.at(builder, place) * scale + middle).bits() for place in places]
            write_line(bytes_of(codes, 0), builder.gep(buffer, [at]), past=True)
        return context.get_dummy_value()

    kind = numba.types
    return kind.void(x, kind.intp, kind.intp, kind.float32, kind.float32, out), generate
