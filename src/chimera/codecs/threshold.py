"""The elements above a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.codecs.kernels import kernels
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.selection import empty_selection
from chimera.codecs.sparse import decode_indices, encode_indices
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("threshold")
class Threshold(Piecewise):
    """Strom, 2015: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing. The elements above a threshold.

    Use this codec with ``error_feedback = true``.

    Parameters
    ----------
    value : least magnitude of the elements that are sent; default 1e-3. Their number depends on the data.
    """

    def __init__(self, *, value: float = 1e-3) -> None:
        if not 0 < value < math.inf or np.float32(value) == 0:
            raise ConfigurationError(f"value must be above 0 and finite, not {value}")
        self._bits = np.array([value], np.float32).view(np.uint32)[0]

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Select the elements."""
        size, select = len(vector), kernels(vector).select
        count = select(vector, self._bits, size, *empty_selection(0, vector))
        indices, values = empty_selection(count, vector)
        select(vector, self._bits, size, indices, values)
        return encode_indices("threshold", size, indices, values)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the vector, with zeros for all other elements."""
        return decode_indices(encoded, buffer)
