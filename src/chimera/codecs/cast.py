"""Floats of 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.codecs.fields import array, check_finite, count_arrays, integer
from chimera.codecs.kernels import kernels
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_INFINITE = {"fp16": 0x7C00, "bf16": 0x7F80}


@CODECS.register("cast")
class Cast(Piecewise):
    """Floats of 16 bits, as in Micikevicius et al., 2018: Mixed Precision Training (fp16), and Kalamkar et al., 2019 (bf16).

    Parameters
    ----------
    to : ``fp16`` (default) keeps 11 significant bits of magnitudes from 6e-8 to 65504; ``bf16`` keeps 8 bits over the range of
        float32. Larger magnitudes become the largest one.
    """

    def __init__(self, *, to: Literal["fp16", "bf16"] = "fp16") -> None:
        self._to, self._scratch = to, Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Round each element to the nearest, ties to even."""
        out = self._scratch.message(vector, "out", len(vector), np.uint16)
        k = kernels(vector)
        check_finite((k.to_half if self._to == "fp16" else k.to_bfloat)(vector, out))
        return Encoded("cast", len(vector), (out,), {"brain": int(self._to == "bf16")})

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the elements as float32."""
        count_arrays(encoded, 1)
        brain = integer(encoded, "brain", 0, 1)
        halves, k = array(encoded, 0, np.uint16, encoded.size), kernels(buffer.memory)
        for low, high in buffer.cut(0, encoded.size):
            values = buffer.memory_of(low, high)
            largest = (k.from_bfloat if brain else k.from_half)(halves[low:high], values)
            if largest >= _INFINITE["bf16" if brain else "fp16"]:
                raise CodecError("a cast message holds NaN or infinity")
            yield slice(low, high), values
