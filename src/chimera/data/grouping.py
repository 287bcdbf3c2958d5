"""Samples that workers read together, such as those of a block of a file, or those of similar length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Grouping(ABC):
    """An endless stream of permutations of the samples 0 to n - 1, in which some samples stay together.

    Groupings are pickled with the orders of workers. Equal ones share the cached values of a process.
    """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """What distinguishes groupings of this class."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """The number n of samples."""

    @abstractmethod
    def of(self, samples: NDArray[Any]) -> Self:
        """Return the grouping of some of the samples, whose numbers ascend; these samples are numbered from 0."""

    @abstractmethod
    def following(self, seed: tuple[int, ...], first: int) -> Indices:
        """Return some samples of the permutation of ``seed``, at least one, from number ``first`` < n on."""

    def batch(self, seed: tuple[int, ...], first: int, count: int) -> Indices:
        """Return ``count`` samples of the stream, from number ``first`` on.

        Parameters
        ----------
        seed : seed of the permutations; the epoch is appended.
        """
        found = []
        while count:
            epoch, begin = divmod(first, self.samples)
            found.append(self.following((*seed, epoch), begin)[:count])
            first, count = first + len(found[-1]), count - len(found[-1])
        return found[0] if len(found) == 1 else np.concatenate(found)

    def __eq__(self, other: object) -> bool:
        """Return whether the groupings are the same, so that workers of one process share cached values."""
        return isinstance(other, type(self)) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)
