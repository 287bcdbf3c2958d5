"""The order of samples of different lengths: batches hold samples of similar length, so that little is padded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chimera.data.grouping import Grouping, Indices

_GROUPS = 50  # groups whose samples are sorted together, so that the samples of a group differ from epoch to epoch


@dataclass(frozen=True, eq=False)
class LengthGroups(Grouping):
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

    @cached_property
    def key(self) -> tuple[int, bytes]:
        """Size and lengths."""
        return self.size, self.lengths.tobytes()

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.lengths)

    def of(self, samples: NDArray[Any]) -> Self:
        """See `Grouping.of`; the samples need not ascend."""
        return type(self)(self.lengths[samples], self.size)

    def following(self, seed: tuple[int, ...], first: int) -> Indices:
        """See `Grouping.following`."""
        return _permutation(self, seed)[first:]


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
