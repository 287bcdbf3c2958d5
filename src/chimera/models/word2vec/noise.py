"""Words drawn at random, in proportion to a power of how often they occur."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chimera.core.errors import ConfigurationError
from chimera.models.word2vec.kernels import kernels

_MASK = (1 << 64) - 1


class Noise:
    """The noise distribution of negative sampling, as an alias table: a draw costs two look-ups, however many words.

    Source: Walker (1977), An Efficient Method for Generating Discrete Random Variables with General Distributions; the power
    3/4 is that of Mikolov et al. (2013), Distributed Representations of Words and Phrases and their Compositionality.

    Parameters
    ----------
    counts : how often each word occurs, shape (V,).
    power : 1 draws words as often as they occur, 0 all equally often.
    """

    def __init__(self, counts: ArrayLike, power: float = 0.75) -> None:
        weights = np.asarray(counts, np.float64) ** power * (np.asarray(counts) > 0)
        self.probabilities = weights / weights.sum()
        self._thresholds, self._aliases = _alias_table(self.probabilities)
        self._key, self._drawn = _key(0), 0

    def reseed(self, seed: int) -> None:
        """Draw from ``seed`` alone from now on."""
        self._key, self._drawn = _key(seed), 0

    def draw(self, out: NDArray[np.int32]) -> None:
        """Fill an array of shape (n,) with words."""
        kernels().draw(self._thresholds, self._aliases, self._key, self._drawn, out)
        self._drawn += out.size

    def drawn_from(self, seed: int, out: NDArray[np.int32]) -> None:
        """Fill an array with what ``seed`` gives, and leave alone what `draw` goes on with."""
        kernels().draw(self._thresholds, self._aliases, _key(seed), 0, out)


def _key(seed: int) -> np.uint64:
    """Mix a seed, for neighbouring ones must not give neighbouring sequences (the finalizer of MurmurHash3)."""
    mixed = (seed ^ (seed >> 64)) & _MASK
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ (mixed >> 33)) * factor & _MASK
    return np.uint64(mixed ^ (mixed >> 33))


def checked_counts(counts: Any, words: int, what: str) -> NDArray[np.int64]:
    """Return word counts as an array.

    Raises
    ------
    ConfigurationError : there are none, or they are not one for each word, negative, or all 0.
    """
    if counts is None:
        raise ConfigurationError(f"{what} needs the option 'counts', how often each word occurs: a text gives it")
    found = np.asarray(counts)
    if found.shape != (words,) or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise ConfigurationError(f"{what}, option 'counts': it must be {words} numbers, one for each word")
    if found.min() < 0 or not found.any():
        raise ConfigurationError(f"{what}, option 'counts': none may be negative and not all 0")
    return found.astype(np.int64)


def _alias_table(probabilities: NDArray[np.float64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return for each word the chance, in units of 2**-32, of being kept, and the word that is taken else (Vose, 1991)."""
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
    for word in small + large:  # what rounding has left over
        scaled[word] = 1.0
    return np.round(np.array(scaled) * 2.0**32).astype(np.uint64), np.array(aliases, np.int32)
