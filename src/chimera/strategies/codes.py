"""Gradient codes (Tandon et al. 2017): who computes which blocks of a batch, what is sent, and what any of it adds up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
    """Workers stand in groups of s + 1, or more where that does not go into n, that do the same (fractional repetition)."""
    groups = max(workers // (stragglers + 1), 1)
    group = np.arange(workers) * groups // workers
    return np.asarray(group[:, None] == group[None, :], np.float64)


def regular(workers: int, stragglers: int) -> Code:
    """Worker i has its own block and s others, by a random graph in which every block has as many holders, and adds them up.

    That is the s-regular graph of Charles et al. 2017: it is never exact by design, and hardly ever far off.
    """
    rng = np.random.default_rng([workers, stragglers, 1])
    place = rng.permutation(workers)  # of each block on a circle, and at which distances its holders stand
    apart = [0, *(1 + rng.permutation(workers - 1)[:stragglers])]
    ahead = (place[None, :] - place[:, None]) % workers
    return np.asarray(np.isin(ahead, apart), np.float64)


CODES: dict[str, Callable[[int, int], Code]] = {"cyclic": cyclic, "repetition": repetition, "regular": regular}
"""By name: each makes the code of so many workers, in which each computes the blocks of ``stragglers`` others."""


@lru_cache(maxsize=8)
def code_of(name: str, workers: int, stragglers: int) -> Code:
    """Return a code by name; the same object each time, which is not to be written to."""
    code = CODES[name](workers, stragglers)
    code.flags.writeable = False
    return code


@lru_cache(maxsize=8)
def fewest(name: str, workers: int, stragglers: int) -> int:
    """Return from how many messages on all blocks may be had: no fewer span them."""
    return int(np.linalg.matrix_rank(code_of(name, workers, stragglers)))


def blocks_of(code: Code, place: int) -> list[int]:
    """Return the blocks that a worker holds, its own first."""
    return [place, *(int(block) for block in np.flatnonzero(code[place]) if block != place)]


def first_like(code: Code, place: int) -> int:
    """Return the place of the first worker who sends the same."""
    return int(np.flatnonzero((code == code[place]).all(1))[0])


def decoding(rows: Sequence[NDArray[np.float64]] | Code) -> tuple[NDArray[np.float64], float]:
    """Return by what to multiply messages, rows of a code, so that all blocks count once, and how far off it is.

    The latter is the root mean square, over the blocks, of how much each counts too much or too little: 0 where the rows are
    enough, and the least that can be where not (Charles et al. 2017, "Approximate Gradient Coding via Sparse Random Graphs").
    """
    shares, missed = _nearest(rows)
    off = float(np.sqrt(np.mean(missed**2)))
    return shares, off if off > _EXACT else 0.0


def most_missed(rows: Sequence[NDArray[np.float64]] | Code) -> int:
    """Return the block to ask for by itself, so that the rows come nearer: one that those have who sent them, if that helps."""
    missed = np.abs(_nearest(rows)[1])
    had = np.where(np.any(rows, axis=0), missed, 0)
    return int(np.argmax(had if had.max() > _EXACT else missed))


def _nearest(rows: Sequence[NDArray[np.float64]] | Code) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the shares that bring the sum of the rows nearest to one of each block, and by how much each is missed."""
    held = np.asarray(rows).T
    shares = np.linalg.lstsq(held, np.ones(len(held)), rcond=None)[0]
    return np.asarray(shares, np.float64), np.asarray(held @ shares - 1, np.float64)
