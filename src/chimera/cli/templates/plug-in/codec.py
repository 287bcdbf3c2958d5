"""A codec: half precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, Codec
from chimera.core.message import Encoded


@CODECS.register("my-project-codec")
class HalfPrecision(Codec):
    """IEEE half precision: 16 bits per element. Values beyond 65504 become infinite."""

    def encode(self, vector: Any, layout: Any) -> Encoded:  # noqa: ARG002 - the tensors do not matter
        """Return the message of a vector, shape (n,)."""
        with np.errstate(over="ignore"):
            return Encoded("my-project-codec", vector.size, (vector.astype(np.float16),))

    def decode(self, encoded: Encoded, out: Any = None) -> Any:
        """Return the vector, as float32."""
        decoded = encoded.arrays[0].astype(np.float32)
        if out is None:
            return decoded
        out[:] = decoded
        return out
