"""Floats of 16 bits."""

from __future__ import annotations

from typing import Literal

import numpy as np

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array, check_finite, count_arrays, integer, output_for
from chimera.codecs.kernels import kernels
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_INFINITE = {"fp16": 0x7C00, "bf16": 0x7F80}


@CODECS.register("cast")
class Cast(Codec):
    """Floats of 16 bits, as in Micikevicius et al., 2018: Mixed Precision Training (fp16), and Kalamkar et al., 2019 (bf16).

    Parameters
    ----------
    to : ``fp16`` (default) keeps 11 significant bits of magnitudes from 6e-8 to 65504; ``bf16`` keeps 8 bits over the range of
        float32. Larger magnitudes become the largest one.
    """

    on_device = True

    def __init__(self, *, to: Literal["fp16", "bf16"] = "fp16") -> None:
        self._to, self._scratch = to, Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Round each element to the nearest, ties to even."""
        out = self._scratch.array("out", len(vector), np.uint16)
        k = kernels(vector)
        check_finite((k.to_half if self._to == "fp16" else k.to_bfloat)(vector, out))
        return Encoded("cast", len(vector), (out,), {"brain": int(self._to == "bf16")})

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the elements as float32."""
        count_arrays(encoded, 1)
        brain = integer(encoded, "brain", 0, 1)
        halves = array(encoded, 0, np.uint16, encoded.size)
        out = output_for(encoded, out)
        k = kernels(out)
        largest = (k.from_bfloat if brain else k.from_half)(halves, out)
        if largest >= _INFINITE["bf16" if brain else "fp16"]:
            raise CodecError("a cast message holds NaN or infinity")
        return out
