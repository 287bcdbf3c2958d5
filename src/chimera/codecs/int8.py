"""Eight bits per element."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.fields import tensor_bounds
from chimera.codecs.levels import Levels, decode_levels, encode_levels
from chimera.codecs.pieces import Piecewise, Target
from chimera.codecs.scratch import Scratch
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("int8")
class Int8(Piecewise):
    """Linear quantization to 8 bits; with blocks as in Dettmers, 2016: 8-Bit Approximations for Parallelism in Deep Learning.

    Parameters
    ----------
    block : elements that share a scale, a power of two; with 0 each tensor has one. Shorter blocks are more exact and cost
        ``32 / block`` bits per element.
    stochastic : round to a neighbouring level at random, without bias, instead of to the nearest.
    """

    def __init__(self, *, block: int = 0, stochastic: bool = False) -> None:
        self._how, self._scratch = Levels(levels=127, block=block, stochastic=stochastic), Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Quantize the vector."""
        key, bounds = self.next_key(), tensor_bounds(layout, len(vector))
        return encode_levels("int8", vector, bounds, self._how, self._scratch, key=key)

    def pieces(self, encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
        """Return the levels' values."""
        return decode_levels(encoded, target)
