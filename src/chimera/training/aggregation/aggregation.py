"""The base class of rules by which a server combines the vectors of workers."""

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
    """Combines several finite vectors into one; the same vectors in the same order give the same bits.

    Attributes
    ----------
    linear : whether the result is a sum of the vectors. A vector may then be multiplied by the weight of its sender, and a
        non-finite vector makes the result non-finite.
    follows : whether a shift of all vectors shifts the result equally, so that the rule treats weights like changes.
    whole : whether it compares whole vectors, so that slices on several servers would give different selections.
    by_rows : whether it has `sparse`.
    """

    linear: ClassVar[bool] = False
    follows: ClassVar[bool] = True
    whole: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False

    def check(self, contributors: int) -> None:  # noqa: B027 - most accept any number
        """Raise ConfigurationError if the rule cannot combine this number of vectors."""

    @abstractmethod
    def dense(self, vectors: Sequence[Flat], out: Flat, rows: RowLayout) -> Flat:
        """Combine vectors of shape (P,) into ``out``, which is none of them; return it.

        ``rows`` is the layout of the rows of the vectors, for rules that work by rows.
        """

    def sparse(self, parts: Sequence[SparseRows], rows: RowLayout) -> SparseRows:
        """Combine sparse rows; return the rows that any sender has."""
        raise NotImplementedError


AGGREGATIONS: Registry[Aggregation] = Registry(
    "aggregation", "chimera.training.aggregation", Aggregation, family="aggregations"
)


def blocks(vectors: Sequence[Flat]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield slices of the vectors, and the slices of all vectors, shape (vectors, length)."""
    size, length = len(vectors[0]), max(_BLOCK // len(vectors), 1)
    for begin in range(0, size, length):
        place = slice(begin, min(begin + length, size))
        yield place, np.stack([vector[place] for vector in vectors])


def centred_gram(vectors: Sequence[Flat]) -> NDArray[np.float64]:
    """Return the scalar products of the vectors minus their coordinate-wise median, shape (vectors, vectors).

    All distances between the vectors, and to any mean of them, follow from these products. Centring at the median keeps
    the precision of small distances when a few vectors are far away.
    """
    gram = np.zeros((len(vectors), len(vectors)))
    for _, block in blocks(vectors):
        seen = block.astype(np.float64)
        seen -= np.median(seen, axis=0)
        gram += seen @ seen.T
    return gram


def at_least(kind: str, key: str, value: Any, least: int) -> None:
    """Raise ConfigurationError if the option of a rule is below ``least``."""
    if value < least:
        raise ConfigurationError(f"aggregation {kind!r}: {key} must be at least {least}, not {value}")
