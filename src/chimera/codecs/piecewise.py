"""Messages that are decoded piece by piece, so that a caller that adds pieces finds each piece in the cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from chimera.codecs.codec import Codec
from chimera.codecs.fields import output_for
from chimera.codecs.kernels.layout import PIECE
from chimera.codecs.scratch import Scratch
from chimera.core.device import on_host
from chimera.core.message import Encoded
from chimera.core.parameters import Flat


@dataclass(frozen=True)
class DecodeBuffer:
    """The memory that pieces are decoded to.

    Attributes
    ----------
    memory : as long as the vector, shape (n,), or as the longest piece.
    step : number of elements of the longest piece.
    whole : whether the memory holds the whole vector; if not, all pieces share it.
    """

    memory: Flat
    step: int
    whole: bool

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of the pieces between two elements."""
        for low in range(begin, end, max(self.step, 1)):
            yield low, min(low + self.step, end)

    def memory_of(self, begin: int, end: int) -> Flat:
        """Return the memory of a piece."""
        return self.memory[begin:end] if self.whole else self.memory[: end - begin]


class Piecewise(Codec):
    """A codec whose messages can be decoded piece by piece."""

    on_device = True

    @abstractmethod
    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Decode a message, in order; yield slices of the vector, and ``buffer``'s memory with their values.

        Raises
        ------
        CodecError : the message is invalid.
        """

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector."""
        out = output_for(encoded, out)
        for _ in self.pieces(encoded, DecodeBuffer(out, encoded.size, whole=True)):
            pass
        return out

    def decode_pieces(self, encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
        """Yield pieces that fit into the cache; on a device, one piece."""
        step = min(PIECE, encoded.size) if on_host(like) else encoded.size
        return self.pieces(encoded, DecodeBuffer(scratch.like(like, "piece", step, "float32"), step, whole=False))
