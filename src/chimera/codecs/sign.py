"""The sign of each element."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.kernels.layout import ABSOLUTE
from chimera.codecs.moments import Moments
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.codecs.signs import decode_signs, encode_signs
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("sign")
class Sign(Piecewise):
    """Karimireddy, Rebjock, Stich and Jaggi, 2019: Error Feedback Fixes SignSGD and other Gradient Compression Schemes. 1 bit.

    Elements become plus or minus the mean magnitude of their tensor. Unscaled, they become plus or minus 1, as in Bernstein,
    Wang, Azizzadenesheli and Anandkumar, 2018: signSGD: Compressed Optimisation for Non-Convex Problems. The server averages
    the signs, so that its step grows with the majority; the paper's majority vote takes the sign of the sum. A zero counts as
    positive, a negative zero as negative.

    Parameters
    ----------
    scaled : whether to send the mean magnitude of each tensor; default True. Without it, learning rates have another order of
        magnitude, and error feedback is not meaningful.
    """

    def __init__(self, *, scaled: bool = True) -> None:
        self._scaled, self._scratch = scaled, Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode the signs."""
        return encode_signs("sign", vector, layout, self._values, self._scratch, columns=ABSOLUTE)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the values of the signs."""
        return decode_signs(encoded, buffer)

    def _values(self, tensor: Moments) -> tuple[float, float]:
        scale = tensor.absolute / tensor.size if self._scaled else 1.0
        return scale, -scale
