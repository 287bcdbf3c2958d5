"""Counts of the training data of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chimera.core.worker_counts import MOST_LABELS, WorkerCount, WorkerCounts
from chimera.data.dataset import Dataset, TrainingData
from chimera.data.row_labels import RowLabels, class_labels
from chimera.data.samples import SampleDataset

_MOST_GROUPS = 5


def worker_counts(train: TrainingData, orders: Sequence[Any]) -> WorkerCounts | None:
    """Return what the workers with these orders hold; None if they have no rows of their own that the driver knows.

    Labels are counted if they are known without reading the samples.
    """
    if not isinstance(train, Dataset | SampleDataset) or not all(hasattr(order, "own") for order in orders):
        return None
    known, groups = class_labels(train.known_labels), train.partition_groups
    labels = None if known is None else _Labels.of(known, train.label_names)
    held = [(order.own(), getattr(order, "kept", None)) for order in orders]
    counts, distance = [], 0.0
    for rank, (own, kept) in enumerate(held):
        rows = own if kept is None else np.concatenate([own, kept])
        found = {} if groups is None else _groups(groups, rows)
        if labels is not None:
            of_each = np.bincount(labels.places[rows], minlength=len(labels.held))
            distance += float(np.abs(of_each / len(rows) - labels.held / len(labels.places)).sum()) / 2
            found |= {"classes": int(np.count_nonzero(of_each)), "counts": labels.shown_of(of_each)}
        tested = None if kept is None else len(kept)
        counts.append(WorkerCount(worker=f"worker {rank}", samples=len(rows), test=tested, **found))
    if labels is None:
        return WorkerCounts(tuple(counts))
    return WorkerCounts(tuple(counts), labels.names, labels.more, distance / len(held))


@dataclass(frozen=True)
class _Labels:
    """The labels of all rows: the place of each row's label, the number of rows at each place, and which are shown."""

    places: NDArray[Any]
    held: NDArray[np.int64]
    shown: NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: NDArray[Any], known: tuple[str, ...] | None) -> Self:
        indices = labels.dtype.kind in "iu" and known is not None and labels.min() >= 0 and labels.max() < len(known)
        if indices:  # sorting the labels of a large data set would take seconds
            places, names = labels, known or ()
        else:
            values, places = np.unique(labels, return_inverse=True)
            names = tuple(map(str, values.tolist()))
        held = np.bincount(places, minlength=len(names))
        shown = np.sort(np.argsort(-held, kind="stable")[: min(MOST_LABELS, np.count_nonzero(held))])
        return cls(places, held, shown, tuple(names[place] for place in shown.tolist()))

    @property
    def more(self) -> int:
        """The number of labels of rows that are not shown."""
        return int(np.count_nonzero(self.held)) - len(self.shown)

    def shown_of(self, counts: NDArray[Any]) -> tuple[int, ...]:
        """Return the counts of the shown labels and, if there are more labels, of all others together."""
        shown = counts[self.shown].tolist()
        return tuple(shown if not self.more else [*shown, int(counts.sum()) - sum(shown)])


def _groups(groups: RowLabels, rows: NDArray[Any]) -> dict[str, Any]:
    found = np.unique(groups.indices[rows])
    return {"groups": len(found), "group_names": tuple(groups.names[i] for i in found[:_MOST_GROUPS].tolist())}
