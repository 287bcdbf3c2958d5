"""The order of samples that are read in blocks, such as the row groups of a file: each batch needs few blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Samples in blocks, of which a process keeps some.

    In each epoch the blocks are shuffled and cut into windows of ``together`` blocks. The samples of each window are shuffled.

    Attributes
    ----------
    bounds : first sample of each block, and the number of all samples; shape (blocks + 1,), ascending.
    together : number of blocks that a process keeps.
    """

    bounds: Indices
    together: int

    def __eq__(self, other: object) -> bool:
        """Return whether the blocks are the same, so that workers of one process share cached values."""
        return isinstance(other, Blocks) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[int, bytes]:
        return self.together, self.bounds.tobytes()

    def of(self, samples: NDArray[Any]) -> Blocks:
        """Return the blocks of some of the samples, whose numbers ascend; these samples are numbered from 0."""
        return Blocks(np.unique(np.searchsorted(samples, self.bounds.astype(samples.dtype))), self.together)

    def batch(self, seed: tuple[int, ...], first: int, count: int) -> Indices:
        """Return ``count`` samples of an endless stream of permutations, from number ``first`` on.

        Parameters
        ----------
        seed : seed of the permutations; the epoch is appended.
        """
        samples, found = int(self.bounds[-1]), []
        while count:
            epoch, begin = divmod(first, samples)
            ends = _shuffled(self, (*seed, epoch))[1]
            window = int(np.searchsorted(ends, begin, "right"))
            begin -= int(ends[window - 1]) if window else 0
            found.append(_samples(self, (*seed, epoch), window)[begin : begin + count])
            first, count = first + len(found[-1]), count - len(found[-1])
        return found[0] if len(found) == 1 else np.concatenate(found)


@lru_cache(maxsize=4)
def _shuffled(blocks: Blocks, seed: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Return the order of the blocks, and the number of samples up to the end of each window."""
    order = np.random.default_rng(seed).permutation(len(blocks.bounds) - 1)
    ends = np.cumsum(np.diff(blocks.bounds)[order])
    last = np.arange(blocks.together - 1, len(ends) + blocks.together - 1, blocks.together)
    return order, ends[np.minimum(last, len(ends) - 1)]


@lru_cache(maxsize=2)  # a process with many workers, such as that of the simulated engine, shuffles only once
def _samples(blocks: Blocks, seed: tuple[int, ...], window: int) -> Indices:
    """Return the shuffled samples of a window."""
    order, _ = _shuffled(blocks, seed)
    chosen = order[window * blocks.together : (window + 1) * blocks.together].tolist()
    samples = np.concatenate([np.arange(blocks.bounds[block], blocks.bounds[block + 1]) for block in chosen])
    shuffled = np.random.default_rng((*seed, window)).permutation(samples)
    shuffled.flags.writeable = False
    return shuffled
