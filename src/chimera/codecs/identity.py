"""The codec that changes nothing: 32 bits for each element."""

from __future__ import annotations

import numpy as np

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array
from chimera.codecs.reduction import Whole
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_FLOAT32 = np.dtype(np.float32)


@CODECS.register("identity", preload=())
class Identity(Codec):
    """Plain float32 vectors."""

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Wrap the vector without a copy."""
        message = Encoded("identity", vector.size, (vector,))
        message.plain = vector.dtype is _FLOAT32 and vector.ndim == 1 and vector.flags.c_contiguous
        return message

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:  # noqa: ARG002 - it is at hand
        """Return the vector in the message."""
        return array(encoded, 0, np.float32, encoded.size, of=1)

    def reduction(self) -> Whole:
        """Return the plain mean."""
        return Whole()
