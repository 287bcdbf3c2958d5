"""The codec's protocol, and the registry of codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.registry import Registry


class Codec(ABC):
    """Packs vectors for the way. There is one instance per sender and key, so it may remember; decoding remembers nothing."""

    @abstractmethod
    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Pack ``vector``, shape (n,). ``layout`` tells the tensors in it. The result may view the vector's memory."""

    @abstractmethod
    def decode(self, encoded: Encoded) -> Flat:
        """Return the vector, shape (n,), possibly read-only."""


CODECS: Registry[Codec] = Registry("codec", "chimera.codecs")

_decoders: dict[str, Codec] = {}


def decode(encoded: Encoded) -> Flat:
    """Unpack what any codec packed; the message names its codec."""
    decoder = _decoders.get(encoded.codec)
    if decoder is None:
        decoder = _decoders[encoded.codec] = CODECS.create(encoded.codec)
    return decoder.decode(encoded)
