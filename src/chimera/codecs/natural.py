"""Stochastic rounding to powers of two."""

from __future__ import annotations

import numpy as np

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array, check_finite, count_arrays, output_for
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import packed_size
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("natural")
class Natural(Codec):
    """Horvath, Ho, Horvath, Sahu, Canini and Richtarik, 2019: Natural Compression for Distributed Deep Learning.

    Each magnitude becomes one of the two nearest powers of two at random, without bias. Sign and exponent are sent: 9 bits for
    each element. The variance is at most 1/8 of the square. Magnitudes above 2**127 become 2**127.
    """

    on_device = True

    def __init__(self) -> None:
        self._scratch = Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Round the elements at random, and encode the exponents."""
        exponents = self._scratch.message(vector, "exponents", len(vector), np.uint8)
        signs = self._scratch.message(vector, "signs", packed_size(len(vector), 1), np.uint8)
        check_finite(kernels(vector).to_exponents(vector, *self.next_key(), exponents, signs))
        return Encoded("natural", len(vector), (exponents, signs))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the powers of two."""
        count_arrays(encoded, 2)
        exponents = array(encoded, 0, np.uint8, encoded.size)
        signs = array(encoded, 1, np.uint8, packed_size(encoded.size, 1))
        out = output_for(encoded, out)
        if kernels(out).from_exponents(exponents, signs, out) == 255:
            raise CodecError("a natural message holds infinity")
        return out
