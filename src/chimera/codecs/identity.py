"""The codec that changes nothing: 32 bits per element."""

from __future__ import annotations

from chimera.codecs.codec import CODECS, Codec
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("identity")
class Identity(Codec):
    """Send float32 as it is."""

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Wrap the vector without a copy."""
        return Encoded("identity", vector.size, (vector,))

    def decode(self, encoded: Encoded) -> Flat:
        """Return the vector that was wrapped."""
        return encoded.arrays[0]
