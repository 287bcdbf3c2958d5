"""A codec: half precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array, check_finite, count_arrays, finite, output_for
from chimera.core.message import Encoded

LARGEST = np.finfo(np.float16).max


@CODECS.register("my-project-codec")
class HalfPrecision(Codec):
    """IEEE half precision: 16 bits per element. Larger magnitudes become 65504."""

    def encode(self, vector: Any, layout: Any) -> Encoded:  # noqa: ARG002 - the tensors do not matter
        """Return the message of a vector, shape (n,)."""
        check_finite(vector)
        return Encoded("my-project-codec", vector.size, (np.clip(vector, -LARGEST, LARGEST).astype(np.float16),))

    def decode(self, encoded: Encoded, out: Any = None) -> Any:
        """Return the vector, as float32; raise CodecError for a message that no encoder has produced."""
        count_arrays(encoded, 1)
        halves = finite(encoded, array(encoded, 0, np.float16, encoded.size), "values")
        out = output_for(encoded, out)
        out[:] = halves
        return out
