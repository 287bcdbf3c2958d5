"""Stochastic quantization to few levels, without bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from chimera.codecs.codec import CODECS
from chimera.codecs.fields import tensor_bounds
from chimera.codecs.levels import Levels, decode_levels, encode_levels
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("qsgd")
class QSGD(Piecewise):
    """Alistarh, Grubic, Li, Tomioka, Vojnovic, 2017: QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding.

    An element x becomes one of the two nearest levels at random, with expectation x. Levels have fixed width. If most are zero,
    ``lossless = true`` compresses them, in place of the paper's Elias code.

    Parameters
    ----------
    levels : number of levels above zero, and as many below; default 4. 4 levels take 4 bits, 1 level takes 2.
    block : number of elements that share a scale (the paper's bucket), a power of two; default 512. 0 gives one scale for each
        tensor.
    norm : value of the outermost level. ``max`` (default) is the block's largest magnitude, as in the paper's experiments.
        ``l2`` is its Euclidean norm, as in the analysis: it gives more variance, and more zeros for ``lossless`` to compress.
    """

    def __init__(self, *, levels: int = 4, block: int = 512, norm: Literal["l2", "max"] = "max") -> None:
        self._how = Levels(levels=levels, block=block, stochastic=True, euclidean=norm == "l2")
        self._scratch = Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Quantize the vector."""
        bounds = tensor_bounds(layout, len(vector))
        return encode_levels("qsgd", vector, bounds, self._how, self._scratch, key=self.next_key())

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the values of the levels."""
        return decode_levels(encoded, buffer)
