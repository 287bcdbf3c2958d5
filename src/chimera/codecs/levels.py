"""Uniform levels from -m to m: the common part of `int8`, `terngrad` and `qsgd`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import array, bounds_of, check_finite, finite, integer, lengths_of
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import CHUNK, SPAN, SQUARE, code_width, packed_size
from chimera.codecs.moments import moments
from chimera.codecs.piecewise import DecodeBuffer
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat

MAX_LEVELS = 32767


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Settings of a uniform quantization.

    Attributes
    ----------
    levels : number of levels above zero, and as many below.
    block : number of elements that share a scale, a power of two; 0 gives one scale for each tensor.
    stochastic : whether to round at random to one of the two nearest levels, without bias, and not to the nearest.
    euclidean : whether the outermost level is the Euclidean norm of the block, and not its largest magnitude.
    """

    levels: int
    block: int = 0
    stochastic: bool = False
    euclidean: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise ConfigurationError(f"levels must be from 1 to {MAX_LEVELS}, not {self.levels}")
        check_block(self.block)

    @property
    def width(self) -> int:
        """Bits of an element."""
        return code_width(2 * self.levels + 1)


def check_block(block: int) -> None:
    """Raise `ConfigurationError` if ``block`` is not a valid length."""
    if block and (block < 16 or block > SPAN or block & (block - 1)):
        raise ConfigurationError(f"block must be a power of two from 16 to {SPAN}, or 0 for whole tensors, not {block}")


def encode_levels(
    name: str,
    vector: Flat,
    bounds: list[int],
    how: Levels,
    scratch: Scratch,
    *,
    key: tuple[np.uint32, np.uint32],
    norms: NDArray[np.float32] | None = None,
) -> Encoded:
    """Quantize a vector, with one scale for each tensor (``norms`` if known) or for each block of the whole vector."""
    k, size, width = kernels(vector), len(vector), how.width
    if how.block:
        bounds, norms = [0, size], None
    spans = list(itertools.pairwise(bounds))
    ends = np.cumsum([0, *(packed_size(end - begin, width) for begin, end in spans)]).tolist()
    packed = scratch.message(vector, "packed", ends[-1], np.uint8)
    codes = scratch.array("codes", CHUNK, _code_type(how.levels))
    if how.block:
        norms = scratch.message(vector, "norms", -(-size // how.block), np.float32)
    elif norms is None:
        norms = _norms(vector, bounds, how.euclidean)
    if not how.block:
        check_finite(norms)
    for i, (begin, end) in enumerate(spans):
        own, block = (norms, how.block) if how.block else (norms[i : i + 1], size)
        find = how.block > 0
        out = packed[ends[i] : ends[i + 1]]
        k.quantize(
            vector[begin:end], own, block, find, how.euclidean, how.levels, width, how.stochastic, *key, begin, codes, out
        )  # fmt: skip
    check_finite(norms)
    meta = {"levels": how.levels, "block": how.block}
    return Encoded(name, size, (packed, norms, *(() if how.block else lengths_of(bounds))), meta)


def _norms(vector: Flat, bounds: list[int], euclidean: bool) -> NDArray[np.float32]:
    """Return the value of the outermost level of each tensor."""
    if euclidean:
        limit = float(np.finfo(np.float32).max)
        return np.array(
            [min(math.sqrt(t.square), limit) for t in moments(vector, bounds, columns=SQUARE, again=True)], np.float32
        )
    return np.array([kernels(vector).abs_max(vector[b:e]) for b, e in itertools.pairwise(bounds)], np.float32)


def decode_levels(encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
    """Decode a message of `encode_levels`, piece by piece."""
    how = Levels(levels=integer(encoded, "levels", 1, MAX_LEVELS), block=_block(encoded))
    bounds, width = bounds_of(encoded, 2), how.width
    if how.block and len(bounds) > 2:
        raise CodecError(f"a {encoded.codec} message has both blocks and tensors")
    spans = list(itertools.pairwise(bounds))
    sizes = [packed_size(end - begin, width) for begin, end in spans]
    packed = array(encoded, 0, np.uint8, sum(sizes))
    norms = array(encoded, 1, np.float32, -(-encoded.size // how.block) if how.block else len(spans))
    if norms.size and finite(encoded, norms, "scales").min() < 0:
        raise CodecError(f"scales of a {encoded.codec} message are negative")
    k, codes, at = kernels(buffer.memory), np.empty(CHUNK, _code_type(how.levels)), 0
    for i, (begin, end) in enumerate(spans):
        for low, high in buffer.cut(begin, end):
            own, block = (norms[low // how.block :], how.block) if how.block else (norms[i : i + 1], encoded.size)
            first, values = at + packed_size(low - begin, width), buffer.memory_of(low, high)
            part = packed[first : first + packed_size(high - low, width)]
            if (largest := k.dequantize(part, own, block, how.levels, width, codes, values)) > 2 * how.levels:
                raise CodecError(f"a code of a {encoded.codec} message is {largest}, above {2 * how.levels}")
            yield slice(low, high), values
        at += sizes[i]


def _block(encoded: Encoded) -> int:
    block = integer(encoded, "block", 0, SPAN)
    try:
        check_block(block)
    except ConfigurationError as error:
        raise CodecError(f"a {encoded.codec} message: {error}") from error
    return block


def _code_type(levels: int) -> type[np.uint8 | np.uint16]:
    return np.uint8 if levels <= 127 else np.uint16
