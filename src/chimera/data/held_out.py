"""Rows that each client keeps for its own evaluation, and never trains on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

Indices = NDArray[np.int64]


class HeldOut:
    """The choice of the rows that clients keep for their evaluation: a function of the seed and the client's rows alone.

    A client keeps this share of its rows, rounded. It keeps at least one row, and trains on at least one. A client with
    a single row trains on it and keeps none. The number of kept rows of each label differs from the same share of them
    by about one at most. Each row has a random number, by which the rows of a label are chosen; so most rows keep their
    role if the data is divided among another number of clients.

    Parameters
    ----------
    share : share of a client's rows, between 0 and 1.
    seed : seed of the random numbers.
    samples : number of rows of the whole data set.
    labels : label of each row, shape (samples,); None if labels are not known.

    Raises
    ------
    ConfigurationError : the share is not between 0 and 1.
    """

    def __init__(self, share: float, seed: int, samples: int, labels: NDArray[Any] | None = None) -> None:
        if not 0 < share < 1:
            raise ConfigurationError(f"test_per_client is {share}: it must be between 0 and 1")
        rng = np.random.default_rng([seed, *b"client test"])
        self._share, self._turns, self._offsets = share, rng.permutation(samples), rng.random(samples)
        self._labels = np.zeros(samples, np.int64) if labels is None else np.unique(labels, return_inverse=True)[1]

    def divided(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the rows that a client trains on, in the order of ``rows``, and those that it keeps, in ascending order."""
        unique = np.unique(rows)
        kept = min(max(round(self._share * len(unique)), 1), len(unique) - 1)
        ordered = unique[np.lexsort((self._turns[unique], self._labels[unique]))]
        _, starts, sizes = np.unique(self._labels[ordered], return_index=True, return_counts=True)
        places = np.arange(len(ordered)) - np.repeat(starts, sizes)
        # Rows of each label are at equal distances on a line, with a random offset: the first rows have equal shares of each.
        at = (places + np.repeat(self._offsets[ordered[starts]], sizes)) / np.repeat(sizes, sizes)
        chosen = np.sort(ordered[np.argsort(at, kind="stable")[:kept]])
        return rows[~np.isin(rows, chosen)], chosen
