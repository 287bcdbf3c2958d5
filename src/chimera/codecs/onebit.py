"""The sign of each element, with the mean of each sign's elements."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.moments import Moments
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.codecs.signs import decode_signs, encode_signs
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("onebit")
class OneBit(Piecewise):
    """Seide, Fu, Droppo, Li and Yu, 2014: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Training.

    Each element becomes the mean of the elements of its sign in its tensor (in the paper, in its column); 1 bit for each
    element. Error feedback is on, as in the paper, unless ``error_feedback = false``.
    """

    feedback = True

    def __init__(self) -> None:
        self._scratch = Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode signs and means."""
        return encode_signs("onebit", vector, layout, _means, self._scratch)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the means."""
        return decode_signs(encoded, buffer)


def _means(tensor: Moments) -> tuple[float, float]:
    plus, minus = (tensor.absolute + tensor.total) / 2, (tensor.absolute - tensor.total) / 2
    return plus / max(tensor.size - tensor.negative, 1), -minus / max(tensor.negative, 1)
