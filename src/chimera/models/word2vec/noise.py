"""The noise distribution of negative sampling: a power of the word frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chimera.core.errors import ConfigurationError
from chimera.models.word2vec.kernels import kernels

_MASK = (1 << 64) - 1


class Noise:
    """The noise distribution of negative sampling, as an alias table: a draw takes two look-ups for any number of words.

    Source: Walker (1977), An Efficient Method for Generating Discrete Random Variables with General Distributions; the power
    3/4 is that of Mikolov et al. (2013), Distributed Representations of Words and Phrases and their Compositionality.

    Parameters
    ----------
    counts : number of occurrences of each word, shape (V,).
    power : exponent of the frequencies, default 0.75; with 1 words are drawn by frequency, with 0 uniformly.
    """

    def __init__(self, counts: ArrayLike, power: float = 0.75) -> None:
        weights = np.asarray(counts, np.float64) ** power * (np.asarray(counts) > 0)
        self.probabilities = weights / weights.sum()
        self._thresholds, self._aliases = _alias_table(self.probabilities)
        self._key, self._drawn = _key(0), 0

    def reseed(self, seed: int) -> None:
        """Restart the random sequence from ``seed``."""
        self._key, self._drawn = _key(seed), 0

    def draw(self, out: NDArray[np.int32]) -> None:
        """Fill an array of shape (n,) with drawn words."""
        kernels().draw(self._thresholds, self._aliases, self._key, self._drawn, out)
        self._drawn += out.size

    def draw_with_seed(self, seed: int, out: NDArray[np.int32]) -> None:
        """Fill an array with words drawn from ``seed``, without changing the sequence of `draw`."""
        kernels().draw(self._thresholds, self._aliases, _key(seed), 0, out)


def _key(seed: int) -> np.uint64:
    """Mix a seed, so that consecutive seeds give independent sequences (the finalizer of MurmurHash3)."""
    mixed = (seed ^ (seed >> 64)) & _MASK
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ (mixed >> 33)) * factor & _MASK
    return np.uint64(mixed ^ (mixed >> 33))


def checked_counts(counts: Any, words: int, what: str) -> NDArray[np.int64]:
    """Return word counts as an array.

    Raises
    ------
    ConfigurationError : counts are missing, not one for each word, negative, or all 0.
    """
    if counts is None:
        raise ConfigurationError(
            f"{what} needs the option 'counts', the number of occurrences of each word; a text sets it"
        )
    found = np.asarray(counts)
    if found.shape != (words,) or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise ConfigurationError(f"{what}, option 'counts': it must be {words} numbers, one for each word")
    if found.min() < 0 or not found.any():
        raise ConfigurationError(f"{what}, option 'counts': no count may be negative, and one must be above 0")
    return found.astype(np.int64)


def _alias_table(probabilities: NDArray[np.float64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return for each word the probability of keeping it, in units of 2**-32, and its alias (Vose, 1991)."""
    scaled = (probabilities * probabilities.size).tolist()
    aliases = list(range(len(scaled)))
    small = [word for word, share in enumerate(scaled) if share < 1]
    large = [word for word, share in enumerate(scaled) if share >= 1]
    while small and large:
        poor, rich = small.pop(), large[-1]
        aliases[poor] = rich
        scaled[rich] -= 1 - scaled[poor]
        if scaled[rich] < 1:
            small.append(large.pop())
    for word in small + large:  # left over due to rounding
        scaled[word] = 1.0
    return np.round(np.array(scaled) * 2.0**32).astype(np.uint64), np.array(aliases, np.int32)
