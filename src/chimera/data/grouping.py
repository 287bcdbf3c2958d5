"""Samples that workers read together, such as those of a block of a file, or those of similar length."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Grouping(Protocol):
    """An endless stream of permutations of the samples 0 to n - 1, in which some samples stay together.

    Groupings are pickled with the orders of workers. Equal ones share the cached values of a process.
    """

    def of(self, samples: NDArray[Any]) -> Self:
        """Return the grouping of some of the samples, whose numbers ascend; these samples are numbered from 0."""

    def batch(self, seed: tuple[int, ...], first: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` samples of the stream, from number ``first`` on.

        Parameters
        ----------
        seed : seed of the permutations; the epoch is appended.
        """
