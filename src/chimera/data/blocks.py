"""The order of samples that are read in blocks, such as the row groups of a file: each batch needs few blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chimera.data.grouping import Grouping, Indices


@dataclass(frozen=True, eq=False)
class Blocks(Grouping):
    """Samples in blocks, of which a process keeps some.

    In each epoch the blocks are shuffled and cut into windows of ``together`` blocks. The samples of each window are shuffled.

    Attributes
    ----------
    bounds : first sample of each block, and the number of all samples; shape (blocks + 1,), ascending.
    together : number of blocks that a process keeps.
    """

    bounds: Indices
    together: int

    @cached_property
    def key(self) -> tuple[int, bytes]:
        """Number of blocks that a process keeps, and bounds."""
        return self.together, self.bounds.tobytes()

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.bounds[-1])

    def of(self, samples: NDArray[Any]) -> Self:
        """See `Grouping.of`."""
        return type(self)(np.unique(np.searchsorted(samples, self.bounds.astype(samples.dtype))), self.together)

    def following(self, seed: tuple[int, ...], first: int) -> Indices:
        """See `Grouping.following`: the rest of a window."""
        ends = _shuffled(self, seed)[1]
        window = int(np.searchsorted(ends, first, "right"))
        return _samples(self, seed, window)[first - (int(ends[window - 1]) if window else 0) :]


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
