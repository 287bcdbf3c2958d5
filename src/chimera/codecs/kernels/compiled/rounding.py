"""Levels in vectors: elements are rounded to the nearest or at random, and packed, from registers to the message."""

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
from chimera.codecs.kernels.layout import APART, CHUNK

_ONES = {8: 1, 4: 0x11, 2: 0x55}


def _steps(count: int) -> int:
    """Return by how much states differ that are so many apart."""
    return count * int(STEP) & 0xFFFFFFFF


def _drawing(width: int) -> Any:
    """Return an intrinsic that draws and packs codes of ``chunks`` from element ``begin`` on, of each ``lines`` of 64 bytes.

    ``f0`` to ``f3`` are what the elements of each stream are scaled by; there is one for 8 bits, two for 4, four for 2.
    ``state`` is that of the first element. What lies ``ahead`` is asked for, counted in elements from a chunk to a later one.
    ``out`` begins with the code of the first element; if ``past``, 64 divides its place.
    """
    streams = range(0, CHUNK, CHUNK * width // 8)  # where in a chunk the elements lie that share a byte
    count = len(streams)

    def line_of(source: Any, here: Lanes, key: Lanes, scale: Lanes, limits: Any) -> Lanes:
        """Draw 64 elements; the level is the uppermost byte."""
        builder, found = here.builder, dict[int, Lanes]()
        for i in range(0, APART, LANES):
            moved = here + _steps(i)
            mix = (moved ^ (moved >> 15)) ^ key
            for at, multiplier in ((i, EARLY), (i + APART, LATE)):
                values = Lanes.at(builder, builder.gep(source, [LONG(at)]))
                found[at] = (values * scale).clipped(*limits).cut() + (mix * int(multiplier) >> 8)
        return bytes_of([found[at] for at in sorted(found)], 3)

    @intrinsic
    def draw(
        typing: Any, x: Any, begin: Any, chunks: Any, lines: Any, ahead: Any, f0: Any, f1: Any, f2: Any, f3: Any, levels: Any,
        state: Any, second: Any, past: Any, out: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds, top = signature.args, arguments[9]
            source = builder.gep(data_of(context, builder, kinds[0], arguments[0]), [arguments[1]])
            target = data_of(context, builder, kinds[13], arguments[13])
            scales = [Lanes.of(builder, each) for each in arguments[5 : 5 + count]]
            high = Lanes.of(builder, builder.sitofp(builder.shl(top, WORD(24)), FLOAT))
            middle = Lanes.of(builder, builder.trunc(builder.mul(top, WORD(_ONES[width])), BYTE))
            counted = Lanes(builder, ir.Constant(WORDS, [_steps(i) for i in range(LANES)]))
            first, key = Lanes.of(builder, arguments[10]) + counted, Lanes.of(builder, arguments[11])
            inside = builder.urem(arguments[1], LONG(CHUNK // count))  # elements of this stream before ``begin``
            ahead = builder.add(builder.mul(inside, LONG(count - 1)), arguments[4])
            with cgutils.for_range(builder, arguments[2]) as chunk, cgutils.for_range(builder, arguments[3]) as loop:
                done, at = builder.mul(chunk.index, LONG(CHUNK)), builder.shl(loop.index, LONG(6))
                place, line = builder.add(done, at), middle
                fetched = builder.add(builder.add(done, ahead), builder.mul(at, LONG(count)))
                for i in range(0, 64 * count, LANES):  # in the order in which it lies there
                    fetch(builder, builder.gep(source, [builder.add(fetched, LONG(i))]))
                here = first + Lanes.of(builder, builder.mul(builder.trunc(place, WORD), WORD(_steps(1))))
                for i, (stream, scale) in enumerate(zip(streams, scales, strict=True)):
                    read = builder.gep(source, [builder.add(place, LONG(stream))])
                    line = line + (line_of(read, here + _steps(stream), key, scale, (high * -1.0, high)) << width * i)
                written = builder.add(builder.udiv(done, LONG(count)), at)
                with builder.if_else(arguments[12]) as (past, otherwise):
                    with past:
                        write_line(line, builder.gep(target, [written]), past=True)
                    with otherwise:
                        write_line(line, builder.gep(target, [written]), past=False)
            return context.get_dummy_value()

        kind = numba.types
        scalars = (*(kind.intp,) * 4, *(kind.float32,) * 4, kind.int32, kind.uint32, kind.uint32, kind.boolean)
        return kind.void(x, *scalars, out), generate

    return draw


draw_8, draw_4, draw_2 = (_drawing(width) for width in (8, 4, 2))


@intrinsic
def round_past(typing: Any, x: Any, begin: Any, lines: Any, factor: Any, shift: Any, out: Any) -> Any:
    """Write the lowest byte of ``x * factor + shift``, the code of the nearest level, of 64 ``lines`` elements past the caches.

    64 divides the place of ``out``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.gep(data_of(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        target = data_of(context, builder, signature.args[5], arguments[5])
        scale, middle = (Lanes.of(builder, each) for each in arguments[3:5])
        with cgutils.for_range(builder, arguments[2]) as loop:
            at = builder.shl(loop.index, LONG(6))
            places = [builder.gep(source, [builder.add(at, LONG(i))]) for i in range(0, 64, LANES)]
            for place in places:
                fetch(builder, builder.gep(place, [LONG(SOON)]))
            codes = [(Lanes.at(builder, place) * scale + middle).bits() for place in places]
            write_line(bytes_of(codes, 0), builder.gep(target, [at]), past=True)
        return context.get_dummy_value()

    kind = numba.types
    return kind.void(x, kind.intp, kind.intp, kind.float32, kind.float32, out), generate
