"""Messages that are unpacked piece by piece: whoever adds them to something finds each piece in the cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from chimera.codecs.codec import Codec
from chimera.codecs.fields import room
from chimera.codecs.kernels.layout import PIECE
from chimera.codecs.scratch import Scratch
from chimera.core.device import on_host
from chimera.core.message import Encoded
from chimera.core.parameters import Flat


@dataclass(frozen=True)
class Target:
    """Where pieces are unpacked to.

    Attributes
    ----------
    memory : as long as the vector, shape (n,), or as long as the longest piece.
    step : elements of the longest piece.
    whole : whether there is memory for all of the vector; else all pieces share it.
    """

    memory: Flat
    step: int
    whole: bool

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where the pieces between two elements begin and end."""
        for low in range(begin, end, max(self.step, 1)):
            yield low, min(low + self.step, end)

    def place(self, begin: int, end: int) -> Flat:
        """Return the memory of a piece."""
        return self.memory[begin:end] if self.whole else self.memory[: end - begin]


class Piecewise(Codec):
    """A codec whose messages can be unpacked piece by piece."""

    on_device = True

    @abstractmethod
    def pieces(self, encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
        """Unpack a message, in order; yield which elements, and ``target``'s memory with their values.

        Raises
        ------
        CodecError : no codec can have made this message.
        """

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector."""
        out = room(encoded, out)
        for _ in self.pieces(encoded, Target(out, encoded.size, whole=True)):
            pass
        return out

    def decode_pieces(self, encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
        """Return pieces that stay in the cache; on a device, where there is none to speak of, all in one."""
        step = min(PIECE, encoded.size) if on_host(like) else encoded.size
        return self.pieces(encoded, Target(scratch.beside(like, "piece", step, "float32"), step, whole=False))
