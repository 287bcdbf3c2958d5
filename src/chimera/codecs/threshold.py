"""The elements above a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.codecs.kernels import kernels
from chimera.codecs.largest import room_for
from chimera.codecs.pieces import Piecewise, Target
from chimera.codecs.sparse import decode_places, encode_places
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("threshold")
class Threshold(Piecewise):
    """Strom, 2015: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing. The elements above a threshold.

    Meant for ``error_feedback = true``.

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
        count = select(vector, self._bits, size, *room_for(0, vector))
        places, values = room_for(count, vector)
        select(vector, self._bits, size, places, values)
        return encode_places("threshold", size, places, values)

    def pieces(self, encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
        """Yield the vector, with zeros for all other elements."""
        return decode_places(encoded, target)
