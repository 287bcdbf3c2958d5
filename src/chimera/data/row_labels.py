"""Labels for partitions, and groups of rows that stay together, from a column, an array or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.registry import load_object
from chimera.data.readers.arrays import as_array, class_indices


@dataclass(frozen=True, eq=False)
class RowLabels:
    """One label, or one group, of each row.

    Attributes
    ----------
    indices : index in ``names`` of the label of each row, int64, shape (n,).
    names : the labels. Integers from 0 with few gaps are their own indices; others are sorted.
    source : the column or function that they come from; empty for an array.
    dropped : whether that column is not an input.
    """

    indices: NDArray[np.int64]
    names: tuple[str, ...]
    source: str = ""
    dropped: bool = False

    @classmethod
    def of(cls, values: Any, what: str, rows: int) -> RowLabels:
        """Return the labels of an array or list of ``rows`` integers, texts or Booleans; `RowLabels` are checked and returned.

        Raises
        ------
        DataError : there is not one label per row. ``what`` names the labels in the message.
        """
        found = values
        if not isinstance(found, RowLabels):
            array = as_array(list(values) if hasattr(values, "to_pylist") else values, what)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"some of the {what} are NaN or infinite: give a label to each sample")
            if array.ndim != 1:
                raise DataError(f"the {what} have shape {array.shape}: give one per sample")
            found = cls(*class_indices(array, None))
        if len(found.indices) != rows:
            raise DataError(f"there are {rows} samples but {len(found.indices)} {what}: give one per sample")
        return found

    def take(self, rows: NDArray[np.int64] | None) -> RowLabels:
        """Return the labels of these rows; of all if ``rows`` is None."""
        return self if rows is None else replace(self, indices=self.indices[rows])

    @property
    def count(self) -> int:
        """The number of different labels that rows have."""
        return len(np.unique(self.indices))


def class_labels(labels: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return known labels if they are one class per row, else None: they may be values, or several for each row."""
    return labels if labels is not None and labels.ndim == 1 and labels.dtype.kind in "biuUS" else None


def found_labels(
    given: Any, what: str, columns: Mapping[str, Callable[[], Any]], samples: Callable[[], Iterable[Any]], rows: int
) -> RowLabels:
    """Return the labels that a user gave as a column, a function or an array.

    Parameters
    ----------
    given : a column's name; a function of a sample, or its name ``package.module:function``; or one value per row.
    what : ``"labels"`` or ``"groups"``, for messages.
    columns : a function for each column by name, which returns its values.
    samples : returns the samples, for a function.
    rows : number of samples.

    Raises
    ------
    DataError : there is no such column, or not one label per sample.
    """
    if isinstance(given, str) and given in columns:
        return replace(RowLabels.of(columns[given](), what, rows), source=given)
    if isinstance(given, str) and ":" not in given:
        raise DataError(
            f"the data has no column {given!r} for its {what}; its columns: {', '.join(columns) or 'none'}; or name a "
            "function, 'file.py:function'"
        )
    function = load_object(given) if isinstance(given, str) else given
    if not callable(function):
        return RowLabels.of(function, what, rows)
    name = str(getattr(function, "__name__", type(function).__name__))
    return replace(RowLabels.of([function(sample) for sample in samples()], what, rows), source=name)
