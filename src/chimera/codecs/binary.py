"""The sign of each element times the standard deviation of its tensor."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.moments import Moments
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.codecs.signs import decode_signs, encode_signs
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("binary")
class Binary(Piecewise):
    """Rastegari et al., 2016: XNOR-Net, for gradients: signs times a scale, which is the standard deviation here.

    Each element becomes plus or minus the standard deviation of its tensor; 1 bit for each element. For a normal distribution
    this is a quarter more than the mean magnitude that `sign` uses.
    """

    def __init__(self) -> None:
        self._scratch = Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode signs and deviations."""
        return encode_signs("binary", vector, layout, _deviations, self._scratch)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the deviations."""
        return decode_signs(encoded, buffer)


def _deviations(tensor: Moments) -> tuple[float, float]:
    return tensor.deviation, -tensor.deviation
