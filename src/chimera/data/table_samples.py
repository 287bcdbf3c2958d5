"""Tables that are larger than memory: rows are decoded by the workers, in blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.data.blocks import Blocks
from chimera.data.readers import table
from chimera.data.readers.parquet import RowGroups
from chimera.data.readers.parquet_rows import ParquetRows
from chimera.data.readers.sources import existing_file
from chimera.data.row_labels import RowLabels, found_labels
from chimera.data.samples import SampleDataset
from chimera.data.scaling import Pieces, Scaling

_PIECE = 1 << 16  # rows


@dataclass(frozen=True, eq=False)
class TableSamples(SampleDataset):
    """A table whose rows are read lazily. Its batches have the same numbers as those of the table in memory.

    Attributes
    ----------
    source : the rows.
    features : names of the columns of the inputs.
    input_scaling, target_scaling : the scaling of the rows of a batch.
    """

    source: ParquetRows
    features: tuple[str, ...] | None = None
    input_scaling: Scaling | None = None
    target_scaling: Scaling | None = None

    def take(self, indices: NDArray[np.int64], key: tuple[int, ...] = ()) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG002
        """Read and scale these rows; ``key`` is not used."""
        rows = np.asarray(indices if self.rows is None else self.rows[indices])
        inputs, targets = self.source.inputs(rows), self.source.targets[rows]
        if targets.dtype.kind in "iu":
            targets = targets.astype(np.int64)
        return (
            inputs if self.input_scaling is None else self.input_scaling.apply(inputs),
            targets if self.target_scaling is None else self.target_scaling.apply(targets),
        )

    @property
    def partition_labels(self) -> NDArray[Any]:
        """The value of each row for a partition by labels: its label, if the data has labels, else its target."""
        return self.targets if self.labels is None else self.labels.take(self.rows).indices

    @cached_property
    def known_labels(self) -> NDArray[Any] | None:
        """The label of each row for stratified choices, shape (n,); None for a regression without labels."""
        return None if self.labels is None and self.source.classes is None else self.partition_labels

    @property
    def label_values(self) -> tuple[str | int | bool, ...] | None:
        """See `Dataset`."""
        return self.source.label_values

    @property
    def targets(self) -> NDArray[Any]:
        """The class index or value of each row, not scaled."""
        return self.source.targets if self.rows is None else self.source.targets[self.rows]

    @property
    def grouping(self) -> Blocks | None:
        """The blocks in which rows should be read; None if a process can keep all of them, or the rows do not ascend."""
        whole = Blocks(self.source.bounds, self.source.together)
        if len(whole.bounds) - 1 <= whole.together or (
            self.rows is not None and (self.rows[1:] < self.rows[:-1]).any()
        ):
            return None
        return whole if self.rows is None else whole.of(self.rows)

    def subset(self, indices: NDArray[np.int64]) -> TableSamples:
        """Return a table of these rows, in this order."""
        rows = np.asarray(indices if self.rows is None else self.rows[indices])
        small = np.int32 if len(self.source) <= np.iinfo(np.int32).max else np.int64
        return replace(self, rows=rows.astype(small, copy=False))

    def values_of(self, what: str) -> Pieces:
        """Return the ``"inputs"`` or ``"targets"``, in pieces."""

        def pieces() -> Iterator[NDArray[Any]]:
            for begin in range(0, len(self), _PIECE):
                yield self.take(np.arange(begin, min(begin + _PIECE, len(self))))[what == "targets"]

        return pieces

    def scaled(self, what: str, scaling: Scaling) -> TableSamples:
        """Return the table with scaled ``"inputs"`` or ``"targets"``."""
        key = f"{what.removesuffix('s')}_scaling"
        changed: dict[str, Any] = {key: scaling.after(getattr(self, key))}
        return replace(self, **changed)


def lazy_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    name: str | None = None,
    like: Any = None,
    target: table.Target = None,
    drop: Sequence[str] = (),
    labels: Any = None,
    groups: Any = None,
    **options: Any,
) -> TableSamples:
    """Return the rows of a Parquet file. The file is read once for its targets and texts.

    Parameters
    ----------
    columns : names of the columns to read; default all.
    name : name of the data set; default: that of the file.
    like : the train part, to read the test part with the same classes and columns.
    target, drop, labels, groups : see `Dataset.of`.
    options : further options of `ParquetRows`.
    """
    file = existing_file(path)
    if isinstance(like, TableSamples):
        target = like.source.target
    chosen = table.TableOptions(target, drop, labels, groups, is_test=like is not None)
    rows = RowGroups(file, columns)
    source = ParquetRows(rows, like=like, target=target, drop=chosen.left_out(rows.names), **options)
    marks: dict[str, Any] = {
        what: _labels(rows, source, given, what) for what, given in chosen.needed() if given is not None
    }
    return TableSamples(
        source, name=name or (file.name if like is None else like.name), features=source.features, **marks
    )


def _labels(rows: RowGroups, source: ParquetRows, given: Any, what: str) -> RowLabels:
    """Return the labels or groups of all rows; only the column that is named is read, and all columns for a function."""
    columns = {name: partial(_values, rows, name) for name in rows.names}
    found = found_labels(given, what, columns, lambda: _records(rows), len(source))
    return replace(found, dropped=found.source in columns and found.source not in source.columns)


def _values(rows: RowGroups, column: str) -> NDArray[Any]:
    frames = (rows.frame(group, [column]) for group in range(len(rows)))
    return np.concatenate([table.target_values(frame[column])[0] for frame in frames if len(frame)])


def _records(rows: RowGroups) -> Iterator[Any]:
    for group in range(len(rows)):
        yield from rows.frame(group).to_dict("records")
