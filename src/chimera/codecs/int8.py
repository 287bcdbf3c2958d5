"""Eight bits for each element."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.fields import tensor_bounds
from chimera.codecs.levels import Levels, decode_levels, encode_levels
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("int8")
class Int8(Piecewise):
    """Linear quantization to 8 bits; with blocks as in Dettmers, 2016: 8-Bit Approximations for Parallelism in Deep Learning.

    Parameters
    ----------
    block : number of elements that share a scale, a power of two; default 0, one scale for each tensor. Shorter blocks are more
        exact, and cost ``32 / block`` bits for each element.
    stochastic : whether to round at random to one of the two nearest levels, without bias; default False, to the nearest level.
    """

    def __init__(self, *, block: int = 0, stochastic: bool = False) -> None:
        self._how, self._scratch = Levels(levels=127, block=block, stochastic=stochastic), Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Quantize the vector."""
        key, bounds = self.next_key(), tensor_bounds(layout, len(vector))
        return encode_levels("int8", vector, bounds, self._how, self._scratch, key=key)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the values of the levels."""
        return decode_levels(encoded, buffer)
