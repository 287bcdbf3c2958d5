"""The unigram model, which knows only the frequencies of words: the baseline of every other model."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from chimera.core.errors import DataError


def unigram_cross_entropy(counts: ArrayLike, targets: ArrayLike) -> float:
    """Return the cross-entropy, in nats per word, of a unigram model of the training text on other words.

    Parameters
    ----------
    counts : number of occurrences of each word in the training text, shape (V,). 1 is added to each (Laplace smoothing), so
        that words that do not occur have a probability above 0.
    targets : indices of the words to predict, shape (n,).

    Raises
    ------
    DataError : there are no words, or an index is out of range.
    """
    seen, words = np.asarray(counts, np.float64) + 1, np.asarray(targets)
    if not words.size:
        raise DataError("the cross-entropy of no words is not defined")
    if words.dtype.kind not in "iu" or words.min() < 0 or words.max() >= seen.size:
        raise DataError(f"the words must be indices from 0 to {seen.size - 1}")
    return float(np.log(seen.sum()) - np.log(seen[words]).mean())
