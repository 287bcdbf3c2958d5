"""Nested arrays as a data set: several inputs, or a mapping of columns, all with one row per sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, leaves, mapped, rows_of, targets_of
from chimera.core.errors import DataError
from chimera.data.collation import as_host_array
from chimera.data.samples import SampleDataset


class NestedArrays:
    """A map-style data set of arrays, such as ``((a, b), targets)``, ``({"a": a}, targets)`` or ``{"a": a, "label": b}``.

    Mappings need not be dictionaries: the ``BatchEncoding`` of a tokenizer is one. ``(images, masks)`` is a nesting, too.

    Parameters
    ----------
    arrays : the nesting. Its leaves are arrays or tensors of the same length; float64 becomes float32.

    Raises
    ------
    DataError : the arrays have different lengths, no rows, or values that are not finite.
    """

    def __init__(self, arrays: Any) -> None:
        self.arrays = mapped(_as_array, arrays)
        lengths = [len(leaf) for leaf in leaves(self.arrays)]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise DataError(
                f"the arrays have {', '.join(map(str, lengths))} rows: all need the same number, at least 1"
            )

    def __len__(self) -> int:
        return len(next(leaves(self.arrays)))

    def __getitem__(self, row: int) -> Batch:
        return rows_of(self.arrays, np.array([row]))

    def __getitems__(self, rows: list[int]) -> list[Batch]:
        return [rows_of(self.arrays, np.array(rows))]

    @property
    def targets(self) -> NDArray[Any] | None:
        """The labels, shape (n,), if the targets are integers of this shape; else None."""
        found = targets_of(self.arrays)
        known = isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in "iu"
        return found if known else None

    def dataset(self, name: str, labels: Any = None, groups: Any = None) -> SampleDataset:
        """Return the data set for a run; ``labels`` and ``groups`` are as in `SampleDataset`."""
        return SampleDataset(self, collate=_only, labels=labels, groups=groups, name=name)


def is_nested(source: Any) -> bool:
    """Return whether a source is a nesting of arrays other than ``(inputs, targets)`` with a number or a row per sample."""
    if isinstance(source, Mapping):
        return _holds_arrays(source)
    if not isinstance(source, tuple) or len(source) != 2 or not _is_array(source[1]):
        return False
    inputs = source[0]
    if isinstance(inputs, Mapping):
        return _holds_arrays(inputs)
    if _is_array(inputs) and len(source[1].shape) > 2:  # such as images with a mask each
        return True
    rows = len(source[1])  # if there are as many arrays as rows, they are the rows of one array
    return isinstance(inputs, tuple | list) and 0 < len(inputs) != rows and all(map(_is_array, inputs))


def _holds_arrays(columns: Mapping[Any, Any]) -> bool:
    return bool(columns) and all(map(_is_array, columns.values()))


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or tensor with rows."""
    return isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype") and len(value.shape) > 0


def _as_array(value: Any) -> Any:
    array = np.asarray(as_host_array(value))
    if array.dtype.kind not in "biuf":
        raise DataError(f"nested arrays must hold numbers, not {array.dtype}: encode texts and labels as 0, 1, ...")
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    return array.astype(np.int64) if array.dtype.kind in "biu" else array


def _only(batches: list[Batch]) -> Batch:
    return batches[0]
