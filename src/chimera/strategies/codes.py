"""Gradient codes (Tandon et al. 2017): who computes which blocks of a batch, what is sent, and what any of it adds up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

_EXACT = 1e-8  # the rest is rounding

Code = NDArray[np.float64]
"""Shape (n, n): worker i sends the sum over the blocks j of entry (i, j) times the gradient of block j."""


def cyclic(workers: int, stragglers: int) -> Code:
    """Worker i has the blocks i to i + s, cyclically; any s may be missing (algorithm 2 of Tandon et al. 2017)."""
    rng = np.random.default_rng([workers, stragglers])
    null = rng.normal(size=(stragglers, workers))
    null[:, -1] = -null[:, :-1].sum(1)  # all ones are in its null space, and the rows of the code will be
    code = np.zeros((workers, workers))
    for worker in range(workers):
        first, *others = (worker + np.arange(stragglers + 1)) % workers
        code[worker, first] = 1
        code[worker, others] = -np.linalg.solve(null[:, others], null[:, first]) if others else []
    return code


def repetition(workers: int, stragglers: int) -> Code:
    """Workers stand in groups of s + 1 that do the same: the first of each counts (fractional repetition)."""
    if workers % (stragglers + 1):
        raise ConfigurationError(
            f"with the code 'repetition' groups of {stragglers + 1} do the same, and {workers} workers cannot be parted so: "
            "choose 'cyclic'"
        )
    group = np.arange(workers) // (stragglers + 1)
    return np.asarray(group[:, None] == group[None, :], np.float64)


CODES: dict[str, Callable[[int, int], Code]] = {"cyclic": cyclic, "repetition": repetition}


@lru_cache(maxsize=8)
def code_of(name: str, workers: int, stragglers: int) -> Code:
    """Return a code by name; the same object each time, which is not to be written to."""
    code = CODES[name](workers, stragglers)
    code.flags.writeable = False
    return code


def decoding(code: Code, there: Sequence[int]) -> tuple[NDArray[np.float64], float]:
    """Return by what to multiply the messages of those who are ``there``, so that all blocks count once, and how far off it is.

    The latter is the root mean square, over the blocks, of how much each counts too much or too little: 0 where enough are
    there, and the least that can be where not (Charles et al. 2017, "Approximate Gradient Coding via Sparse Random Graphs").
    """
    ones = np.ones(code.shape[1])
    rows = code[list(there)].T
    shares = np.asarray(np.linalg.lstsq(rows, ones, rcond=None)[0], np.float64)
    off = float(np.sqrt(np.mean((rows @ shares - ones) ** 2)))
    return shares, off if off > _EXACT else 0.0
