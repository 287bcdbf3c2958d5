"""The order of samples of different lengths: batches hold samples of similar length, so that little is padded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

_GROUPS = 50  # groups whose samples are sorted together, so that the samples of a group differ from epoch to epoch


@dataclass(frozen=True, eq=False)
class LengthGroups:
    """Samples in groups of similar length.

    In each epoch the samples are shuffled and cut into windows of 50 groups. The samples of each window are sorted by length
    and cut into groups, and the groups of all windows are shuffled. The last group of an epoch may be smaller.

    Attributes
    ----------
    lengths : length of each sample, shape (n,), in any unit.
    size : number of samples in a group. The samples of a step are of similar length if this is their number, or a multiple.
    """

    lengths: NDArray[Any]
    size: int

    def __eq__(self, other: object) -> bool:
        """Return whether the groups are the same, so that workers of one process share cached values."""
        return isinstance(other, LengthGroups) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[int, bytes]:
        return self.size, self.lengths.tobytes()

    def of(self, samples: NDArray[Any]) -> LengthGroups:
        """Return the groups of some of the samples; these samples are numbered from 0."""
        return LengthGroups(self.lengths[samples], self.size)

    def batch(self, seed: tuple[int, ...], first: int, count: int) -> Indices:
        """Return ``count`` samples of an endless stream of permutations, from number ``first`` on.

        Parameters
        ----------
        seed : seed of the permutations; the epoch is appended.
        """
        found = []
        while count:
            epoch, begin = divmod(first, len(self.lengths))
            found.append(_permutation(self, (*seed, epoch))[begin : begin + count])
            first, count = first + len(found[-1]), count - len(found[-1])
        return found[0] if len(found) == 1 else np.concatenate(found)


@lru_cache(maxsize=2)  # a process with many workers, such as that of the simulated engine, shuffles only once
def _permutation(groups: LengthGroups, seed: tuple[int, ...]) -> Indices:
    """Return the samples of an epoch."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(groups.lengths))
    window = np.arange(len(shuffled)) // (_GROUPS * groups.size)
    ordered = shuffled[np.lexsort((groups.lengths[shuffled], window))]  # samples of equal length stay shuffled
    whole = len(ordered) // groups.size * groups.size
    mixed = rng.permutation(ordered[:whole].reshape(-1, groups.size)).ravel()
    found = np.concatenate([mixed, ordered[whole:]])
    found.flags.writeable = False
    return found
