"""The elements of largest magnitude."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.selection import count_of, select_exact, select_sampled
from chimera.codecs.sparse import decode_indices, encode_indices
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


def check_ratio(ratio: float) -> None:
    """Raise `ConfigurationError` if ``ratio`` is not a valid share of a vector."""
    if not 0 < ratio <= 1:
        raise ConfigurationError(f"ratio must be above 0 and at most 1, not {ratio}")


@CODECS.register("top-k")
class TopK(Piecewise):
    """Aji and Heafield, 2017: Sparse Communication for Distributed Gradient Descent. The elements of largest magnitude.

    Use this codec with ``error_feedback = true``.

    Parameters
    ----------
    ratio : share of the elements that is sent; default 0.01, about 0.4 bits for each element of the vector.
    sampled : whether to estimate the threshold from a sample; default False. This is faster, and the number of elements varies
        by some percent.
    """

    def __init__(self, *, ratio: float = 0.01, sampled: bool = False) -> None:
        check_ratio(ratio)
        self._ratio, self._sampled = ratio, sampled

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Select the elements."""
        count = count_of(len(vector), self._ratio)
        found = select_sampled(vector, count, int(self.next_key()[0])) if self._sampled else select_exact(vector, count)
        return encode_indices("top-k", len(vector), *found)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the vector, with zeros for all other elements."""
        return decode_indices(encoded, buffer)
