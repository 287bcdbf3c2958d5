"""Counts of the training data of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.worker_counts import MAX_LABELS, WorkerCount, WorkerCounts
from chimera.data.dataset import Dataset, TrainingData
from chimera.data.row_labels import RowLabels, class_labels
from chimera.data.samples import SampleDataset

_MAX_GROUPS = 5
_MAX_COUNTS = 1 << 20

_Counted: TypeAlias = tuple[int | None, tuple[int, ...]]


def worker_counts(train: TrainingData, orders: Sequence[Any]) -> WorkerCounts | None:
    """Return the counts of workers with these orders; None if they have no rows of their own that the driver knows.

    Labels are counted if they are known without reading the samples.
    """
    if not isinstance(train, Dataset | SampleDataset) or not all(hasattr(order, "own") for order in orders):
        return None
    known, groups = class_labels(train.known_labels), train.partition_groups
    labels = None if known is None else _Labels.of(known, train.label_names)
    kept = [getattr(order, "kept", None) for order in orders]
    held = [
        order.own() if tested is None else np.concatenate([order.own(), tested])
        for order, tested in zip(orders, kept, strict=True)
    ]
    distance, found = (0.0, [(None, ())] * len(held)) if labels is None else labels.count(held)
    counts = tuple(
        WorkerCount(
            worker=f"worker {rank}",
            samples=len(rows),
            test=None if tested is None else len(tested),
            classes=classes,
            counts=shown,
            **({} if groups is None else _groups(groups, rows)),
        )
        for rank, (rows, tested, (classes, shown)) in enumerate(zip(held, kept, found, strict=True))
    )
    return WorkerCounts(counts) if labels is None else WorkerCounts(counts, labels.names, labels.more, distance)


@dataclass(frozen=True)
class _Labels:
    """The labels of all rows: the place of each row's label, the number of rows at each place, and the labels shown."""

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
        shown = np.sort(np.argsort(-held, kind="stable")[: min(MAX_LABELS, np.count_nonzero(held))])
        return cls(places, held, shown, tuple(names[place] for place in shown.tolist()))

    @property
    def more(self) -> int:
        """The number of labels of rows that are not shown."""
        return int(np.count_nonzero(self.held)) - len(self.shown)

    def count(self, held: Sequence[NDArray[Any]]) -> tuple[float, list[_Counted]]:
        """Return the mean distance of the workers' shares of labels from those of all rows, and the counts of each worker.

        The counts are the number of its labels, and those of the shown labels and, if there are more, of all others together.
        Many workers are counted at a time: there may be 100,000, with a few rows each.
        """
        labels, distance = len(self.held), 0.0
        found: list[_Counted] = []
        at_once = max(1, _MAX_COUNTS // labels)
        for begin in range(0, len(held), at_once):
            part = held[begin : begin + at_once]
            sizes = np.array([len(rows) for rows in part])
            ranks = np.repeat(np.arange(len(part)) * labels, sizes)
            places = self.places[np.concatenate(part)].astype(np.int64, copy=False)
            counts = np.bincount(ranks + places, minlength=len(part) * labels)
            counts = counts.reshape(len(part), labels)
            distance += float(np.abs(counts / sizes[:, None] - self.held / len(self.places)).sum()) / 2
            shown = counts[:, self.shown]
            if self.more:
                shown = np.column_stack([shown, counts.sum(axis=1) - shown.sum(axis=1)])
            found += zip(np.count_nonzero(counts, axis=1).tolist(), map(tuple, shown.tolist()), strict=True)
        return distance / len(held), found


def _groups(groups: RowLabels, rows: NDArray[Any]) -> dict[str, Any]:
    found = np.unique(groups.indices[rows])
    return {"groups": len(found), "group_names": tuple(groups.names[i] for i in found[:_MAX_GROUPS].tolist())}
