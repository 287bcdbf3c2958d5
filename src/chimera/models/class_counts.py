"""Counts of each class among targets and predictions, from which F1 follows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

_MAX_CLASSES = 1 << 20


class ClassCounts:
    """Rows of each class: predicted correctly, predicted, and present.

    Targets are class indices, shape (n,), or 0 and 1 for each label, shape (n, k). Targets of -100 do not count.

    Attributes
    ----------
    counts : int64, shape (3, k).
    several : whether rows have several labels; None before the first row.
    """

    def __init__(self) -> None:
        self.counts = np.zeros((3, 0), np.int64)
        self.several: bool | None = None

    def add(self, targets: NDArray[Any], predictions: NDArray[Any]) -> None:
        """Count rows.

        Raises
        ------
        ConfigurationError : targets of several columns are not 0 or 1.
        """
        if targets.ndim > 1:
            if targets.ndim > 2 or not {*np.unique(targets).tolist(), *np.unique(predictions).tolist()} <= {0, 1}:
                raise ConfigurationError("the metric 'f1' needs one class a row, or labels that are 0 or 1")
            truth, predicted = targets.astype(bool), predictions.astype(bool)
            self._merge(np.stack([(truth & predicted).sum(0), predicted.sum(0), truth.sum(0)]), several=True)
            return
        counted = targets != -100
        truth, predicted = targets[counted].astype(np.int64), predictions[counted].astype(np.int64)
        size = int(max(truth.max(initial=-1), predicted.max(initial=-1))) + 1
        found = [np.bincount(rows, minlength=size) for rows in (truth[truth == predicted], predicted, truth)]
        self._merge(np.stack(found), several=False)

    def f1(self) -> float:
        """Return F1 of class 1 for two classes, else the mean over the classes that are present or predicted."""
        right, predicted, truth = self.counts
        present = np.ones(len(right), bool) if self.several else predicted + truth > 0
        scores = 2 * right / np.maximum(predicted + truth, 1)
        if not self.several and not present[2:].any():
            return float(scores[1]) if len(scores) > 1 else 0.0
        return float(scores[present].mean()) if present.any() else 0.0

    def sums(self) -> NDArray[np.float64]:
        """Return the counts as one list, after a number that states whether rows have several labels."""
        kind = -1 if self.several is None else int(self.several)
        return np.concatenate([[float(kind)], self.counts.reshape(-1)])

    def add_sums(self, sums: NDArray[np.float64]) -> None:
        """Add the result of `sums` for other rows.

        Raises
        ------
        ValueError : the list has another form.
        """
        if not len(sums) or sums[0] == -1:
            return
        counts = sums[1:].reshape(3, -1)
        if not (counts >= 0).all() or not (counts < 1 << 53).all() or counts.shape[1] > _MAX_CLASSES:
            raise ValueError("they are no counts of classes")
        self._merge(counts.astype(np.int64), several=bool(sums[0]))

    def _merge(self, counts: NDArray[Any], *, several: bool) -> None:
        if self.several not in (None, several) or (several and self.counts.shape[1] not in (0, counts.shape[1])):
            raise ValueError("some rows have one class, others several labels")
        self.several, size = several, max(self.counts.shape[1], counts.shape[1])
        own, more = (np.pad(each, ((0, 0), (0, size - each.shape[1]))) for each in (self.counts, counts))
        self.counts = own + more
