"""The model that knows how often words occur, and nothing else: what any other has to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from chimera.core.errors import DataError


def unigram_cross_entropy(counts: ArrayLike, targets: ArrayLike) -> float:
    """Return the cross-entropy, in nats a word, of a unigram model of the training text on other words.

    Parameters
    ----------
    counts : how often each word occurs in the training text, shape (V,). Each counts once more (Laplace's rule), so that a
        word that does not occur there has a probability.
    targets : indices of the words that are to be predicted, shape (n,).

    Raises
    ------
    DataError : no words, or indices that no count belongs to.
    """
    seen, words = np.asarray(counts, np.float64) + 1, np.asarray(targets)
    if not words.size:
        raise DataError("the cross-entropy of no words is not defined")
    if words.dtype.kind not in "iu" or words.min() < 0 or words.max() >= seen.size:
        raise DataError(f"the words must be indices from 0 to {seen.size - 1}")
    return float(np.log(seen.sum()) - np.log(seen[words]).mean())
