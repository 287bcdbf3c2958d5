"""Gradient codes (Tandon et al. 2017): which worker computes which blocks, what it sends, and how messages are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_EXACT = 1e-8  # smaller deviations are rounding errors

Code = NDArray[np.float64]
"""Shape (n, n): worker i sends the sum over the blocks j of entry (i, j) times the gradient of block j."""


def cyclic(workers: int, stragglers: int) -> Code:
    """Return the cyclic code: worker i has the blocks i to i + s, cyclically (algorithm 2 of Tandon et al. 2017).

    Messages of any n - s workers suffice.
    """
    rng = np.random.default_rng([workers, stragglers])
    null = rng.normal(size=(stragglers, workers))
    null[:, -1] = -null[:, :-1].sum(1)  # its null space holds the vector of ones, and will hold the rows of the code
    code = np.zeros((workers, workers))
    for worker in range(workers):
        first, *others = (worker + np.arange(stragglers + 1)) % workers
        code[worker, first] = 1
        code[worker, others] = -np.linalg.solve(null[:, others], null[:, first]) if others else []
    return code


def repetition(workers: int, stragglers: int) -> Code:
    """Return the fractional repetition code: groups of s + 1 workers compute the same; more if s + 1 does not divide n."""
    groups = max(workers // (stragglers + 1), 1)
    group = np.arange(workers) * groups // workers
    return np.asarray(group[:, None] == group[None, :], np.float64)


def regular(workers: int, stragglers: int) -> Code:
    """Return the code of a random s-regular graph (Charles et al. 2017): a worker sends the sum of its own block and s others.

    Every block has s + 1 holders. Decoding is approximate by design, mostly with a small error.
    """
    rng = np.random.default_rng([workers, stragglers, 1])
    place = rng.permutation(workers)  # place of each block on a circle; `apart` holds the distances of its holders
    apart = [0, *(1 + rng.permutation(workers - 1)[:stragglers])]
    ahead = (place[None, :] - place[:, None]) % workers
    return np.asarray(np.isin(ahead, apart), np.float64)


CODES: dict[str, Callable[[int, int], Code]] = {"cyclic": cyclic, "repetition": repetition, "regular": regular}
"""Functions by name. Each returns the code of a number of workers that also compute the blocks of ``stragglers`` others."""


@lru_cache(maxsize=8)
def code_of(name: str, workers: int, stragglers: int) -> Code:
    """Return a code by name. The result is shared, and must not be written to."""
    code = CODES[name](workers, stragglers)
    code.flags.writeable = False
    return code


@lru_cache(maxsize=8)
def fewest(name: str, workers: int, stragglers: int) -> int:
    """Return the least number of messages that can span all blocks."""
    return int(np.linalg.matrix_rank(code_of(name, workers, stragglers)))


def blocks_of(code: Code, place: int) -> list[int]:
    """Return the blocks that a worker holds, its own first."""
    return [place, *(int(block) for block in np.flatnonzero(code[place]) if block != place)]


def first_like(code: Code, place: int) -> int:
    """Return the place of the first worker that sends the same message."""
    return int(np.flatnonzero((code == code[place]).all(1))[0])


def decoding(rows: Sequence[NDArray[np.float64]] | Code) -> tuple[NDArray[np.float64], float]:
    """Return factors for messages, given as rows of a code, so that all blocks count once; and the error.

    The error is the root mean square, over the blocks, of the deviation from counting once. The error is 0 if the rows suffice,
    and otherwise the least possible (Charles et al. 2017, "Approximate Gradient Coding via Sparse Random Graphs").
    """
    shares, missed = _nearest(rows)
    off = float(np.sqrt(np.mean(missed**2)))
    return shares, off if off > _EXACT else 0.0


def max_missed(rows: Sequence[NDArray[np.float64]] | Code) -> int:
    """Return the block whose separate computation reduces the error most; a block that was computed already is preferred."""
    missed = np.abs(_nearest(rows)[1])
    had = np.where(np.any(rows, axis=0), missed, 0)
    return int(np.argmax(had if had.max() > _EXACT else missed))


def _nearest(rows: Sequence[NDArray[np.float64]] | Code) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the factors by which the sum of the rows is nearest to all ones, and each block's deviation."""
    held = np.asarray(rows).T
    shares = np.linalg.lstsq(held, np.ones(len(held)), rcond=None)[0]
    return np.asarray(shares, np.float64), np.asarray(held @ shares - 1, np.float64)
