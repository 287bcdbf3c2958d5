"""A rule by which a server makes one vector of those that workers sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.registry import Registry
from chimera.core.rows import RowLayout, SparseRows

_BLOCK = 1 << 22  # elements of all vectors that are processed at a time


class Aggregation(ABC):
    """Makes one vector of several, all finite; the same vectors in the same order give the same bits.

    Attributes
    ----------
    linear : whether it adds the vectors up, so that a vector may be multiplied by how much its sender counts, and one that is
        not finite shows in what comes out.
    follows : whether moving all vectors moves what comes out as far, so that it does with weights what it does with changes.
    whole : whether it compares vectors as a whole, so that slices on several servers would each come to another verdict.
    by_rows : whether it has `sparse`.
    """

    linear: ClassVar[bool] = False
    follows: ClassVar[bool] = True
    whole: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False

    def check(self, contributors: int) -> None:  # noqa: B027 - most can do with any number
        """Raise ConfigurationError if it can make nothing of so many vectors."""

    @abstractmethod
    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:
        """Write what vectors, shape (P,), come to, to ``out``, which is none of them; return it.

        ``rows`` says where the rows of the vectors lie, for rules that go by rows.
        """

    def sparse(self, parts: Sequence[SparseRows], rows: RowLayout) -> SparseRows:
        """Return the same of rows, each of which its giver has touched: those that any giver has."""
        raise NotImplementedError


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation", "chimera.training.aggregation", Aggregation)


def blocks(vectors: Sequence[Flat]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield, piece by piece, where it lies in the vectors, and that of all of them, shape (vectors, length)."""
    size, length = len(vectors[0]), max(_BLOCK // len(vectors), 1)
    for begin in range(0, size, length):
        place = slice(begin, min(begin + length, size))
        yield place, np.stack([vector[place] for vector in vectors])


def centred_gram(vectors: Sequence[Flat]) -> NDArray[np.float64]:
    """Return the scalar products of the vectors as seen from their coordinate-wise median, shape (vectors, vectors).

    All distances between them, and to any mean of them, follow from it. From there a few vectors far away do not take the
    digits from the distances of those that are close together.
    """
    gram = np.zeros((len(vectors), len(vectors)))
    for _, block in blocks(vectors):
        seen = block.astype(np.float64)
        seen -= np.median(seen, axis=0)
        gram += seen @ seen.T
    return gram


def at_least(kind: str, key: str, value: Any, least: int) -> None:
    """Raise ConfigurationError unless the option of a rule is at least so much."""
    if value < least:
        raise ConfigurationError(f"aggregation {kind!r}: {key} must be at least {least}, not {value}")
