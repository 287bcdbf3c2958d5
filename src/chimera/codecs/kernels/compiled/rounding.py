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
from chimera.codecs.kernels.layout import CHUNK, HALF

_STREAMS = {8: (0, HALF), 4: (0, HALF), 2: (0, HALF // 2, HALF, HALF + HALF // 2)}
"""Where in a chunk the elements lie that share a byte, or for 8 bits a state, by the width of their codes."""
_ONES = {8: 1, 4: 0x11, 2: 0x55}
_AHEAD = CHUNK
"""What is read in several places at once is not fetched ahead by itself, so it is asked for, so many elements before."""


def _steps(count: int) -> int:
    """Return by how much states differ that are so many apart."""
    return count * int(STEP) & 0xFFFFFFFF


def _drawing(width: int, past: bool) -> Any:
    """Return an intrinsic that draws and packs the codes of a chunk from element ``begin`` on, in ``lines`` of 64 bytes.

    ``f0`` to ``f3`` are what the elements of each stream are scaled by; there are two for 8 and 4 bits. ``state`` is that of
    the first element. ``out`` begins with its code; if ``past``, 64 divides its place.
    """
    streams = _STREAMS[width]
    multipliers = [int(LATE if stream >= HALF else EARLY) for stream in streams]

    def levels_of(source: Any, at: Any, here: Lanes, key: Lanes, scales: list[Lanes], limits: Any) -> list[Lanes]:
        """Draw 16 elements of each stream; the level is the uppermost byte."""
        builder, mixes, found = here.builder, dict[int, Lanes](), []
        for stream, multiplier, scale in zip(streams, multipliers, scales, strict=True):
            place = builder.gep(source, [builder.add(at, LONG(stream))])
            fetch(builder, builder.gep(place, [LONG(_AHEAD)]))
            if stream < HALF:
                moved = here + _steps(stream)
                mixes[stream] = (moved ^ (moved >> 15)) ^ key
            noise = mixes[stream % HALF] * multiplier >> 8
            found.append((Lanes.at(builder, place) * scale).clipped(*limits).cut() + noise)
        return found

    @intrinsic
    def draw(
        typing: Any, x: Any, begin: Any, lines: Any, f0: Any, f1: Any, f2: Any, f3: Any, levels: Any, state: Any,
        second: Any, out: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds, top = signature.args, arguments[7]
            source = builder.gep(data_of(context, builder, kinds[0], arguments[0]), [arguments[1]])
            target = data_of(context, builder, kinds[10], arguments[10])
            scales = [Lanes.of(builder, each) for each in arguments[3 : 3 + len(streams)]]
            high = Lanes.of(builder, builder.sitofp(builder.shl(top, WORD(24)), FLOAT))
            middle = Lanes.of(builder, builder.trunc(builder.mul(top, WORD(_ONES[width])), BYTE))
            counted = Lanes(builder, ir.Constant(WORDS, [_steps(i) for i in range(LANES)]))
            first, key = Lanes.of(builder, arguments[8]) + counted, Lanes.of(builder, arguments[9])
            with cgutils.for_range(builder, arguments[2]) as loop:
                at = builder.shl(loop.index, LONG(6))
                here = first + Lanes.of(builder, builder.mul(builder.trunc(at, WORD), WORD(_steps(1))))
                found = [
                    levels_of(source, builder.add(at, LONG(i)), here + _steps(i), key, scales, (high * -1.0, high))
                    for i in range(0, 64, LANES)
                ]
                lines = [bytes_of(four, 3) for four in zip(*found, strict=True)]
                if width < 8:
                    lines = [sum((line << width * i for i, line in enumerate(lines)), start=middle)]
                else:
                    lines = [line + middle for line in lines]
                for stream, line in zip(streams, lines, strict=False):
                    write_line(line, builder.gep(target, [builder.add(at, LONG(stream))]), past=past)
            return context.get_dummy_value()

        kind = numba.types
        scalars = (kind.intp, kind.intp, *(kind.float32,) * 4, kind.int32, kind.uint32, kind.uint32)
        return kind.void(x, *scalars, out), generate

    return draw


draw_8, draw_4, draw_2 = (_drawing(width, False) for width in (8, 4, 2))
draw_8_past = _drawing(8, True)


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
