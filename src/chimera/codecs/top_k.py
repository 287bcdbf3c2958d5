"""The elements of largest magnitude."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.codecs.codec import CODECS
from chimera.codecs.largest import by_sample, exactly, share
from chimera.codecs.pieces import Piecewise, Target
from chimera.codecs.sparse import decode_places, encode_places
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

    Meant for ``error_feedback = true``.

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
        count = share(len(vector), self._ratio)
        found = by_sample(vector, count, int(self.next_key()[0])) if self._sampled else exactly(vector, count)
        return encode_places("top-k", len(vector), *found)

    def pieces(self, encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
        """Yield the vector, with zeros for all other elements."""
        return decode_places(encoded, target)
