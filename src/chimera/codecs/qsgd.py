"""Few levels, chosen at random and without bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from chimera.codecs.codec import CODECS
from chimera.codecs.fields import tensor_bounds
from chimera.codecs.levels import Levels, decode_levels, encode_levels
from chimera.codecs.pieces import Piecewise, Target
from chimera.codecs.scratch import Scratch
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("qsgd")
class QSGD(Piecewise):
    """Alistarh, Grubic, Li, Tomioka, Vojnovic, 2017: QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding.

    An element x becomes one of the two levels around it at random, such that its expectation is x. Levels travel as numbers of
    fixed width; where most are zero, ``lossless = true`` takes the place of the paper's Elias code.

    Parameters
    ----------
    levels : above zero, and as many below; 4 take 4 bits, 1 takes 2.
    block : elements that share a scale (the paper's bucket), a power of two; with 0 each tensor has one.
    norm : what the outermost level stands for: the largest magnitude in the block (``max``), as in the paper's experiments, or
        the block's Euclidean norm (``l2``), as in its analysis: more variance, and more zeros for ``lossless`` to shorten.
    """

    def __init__(self, *, levels: int = 4, block: int = 512, norm: Literal["l2", "max"] = "max") -> None:
        self._how = Levels(levels=levels, block=block, stochastic=True, euclidean=norm == "l2")
        self._scratch = Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Quantize the vector."""
        bounds = tensor_bounds(layout, len(vector))
        return encode_levels("qsgd", vector, bounds, self._how, self._scratch, key=self.next_key())

    def pieces(self, encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
        """Return the levels' values."""
        return decode_levels(encoded, target)
