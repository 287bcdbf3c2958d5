"""Tables of numbers: rows of requests, training data of workers, and the matching of their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chimera.core.counted import counted
from chimera.core.errors import DataError
from chimera.data.readers.csv_file import read_csv
from chimera.models.model import Task

X_FILE, Y_FILE = "X_train.csv", "y_train.csv"
_NUMBERS = frozenset((int, float))
_MAX_NAMES, _MAX_NAME_CHARACTERS = 10, 60  # column names in a message, and characters of each


@dataclass(frozen=True)
class Table:
    """Rows of finite numbers with named columns.

    Attributes
    ----------
    columns : name of each column.
    rows : float64, shape (n, d).
    """

    columns: tuple[str, ...]
    rows: NDArray[np.float64]

    @classmethod
    def of(cls, columns: Any, rows: Any, *, what: str = "X_pred") -> Self:
        """Validate a table that a client sent.

        Parameters
        ----------
        columns, rows : a list of names, and a list of lists of numbers or an array.
        what : prefix of their keys, for messages: ``X_pred`` for ``X_pred_columns`` and ``X_pred_rows``.

        Raises
        ------
        DataError : the table is invalid.
        """
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise DataError(f"{what}_columns must be a list of names")
        values = numeric_array(rows, f"{what}_rows")
        if values.size == 0 and values.ndim < 3:
            values = values.reshape(len(values), -1) if len(values) else np.empty((0, len(columns)))
        if values.ndim != 2 or values.shape[1] != len(columns):
            raise DataError(
                f"{what}_rows must be a list of rows with {len(columns)} numbers each, one for each name in {what}_columns; "
                f"its shape is {values.shape}"
            )
        return cls(tuple(columns), values)

    def ordered(self, wanted: Sequence[str]) -> NDArray[np.float64]:
        """Return the rows with their columns in the order of ``wanted``; see `match_columns`."""
        order = match_columns(wanted, self.columns)
        return self.rows if order == list(range(len(order))) else np.ascontiguousarray(self.rows[:, order])


def numeric_array(value: Any, name: str, dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
    """Convert nested lists of numbers, or an array, to a finite array of ``dtype``; ``name`` is for messages.

    Raises
    ------
    DataError : the value is not a list, is ragged, or contains anything but finite numbers.
    """
    if not isinstance(value, list | tuple | np.ndarray):
        raise DataError(f"{name} must be a list of numbers")
    if not isinstance(value, np.ndarray):
        _check_numbers(value, name)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{name}: all rows must have the same length and contain numbers only") from error
    if array.size == 0:
        return np.zeros(array.shape, dtype)
    if array.dtype.kind not in "fiu":
        what = f"values of type {array.dtype}" if isinstance(value, np.ndarray) else "numbers beyond 64 bits"
        raise DataError(f"{name} contains {what}: only numbers are allowed")
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.ascontiguousarray(array, dtype)
    if not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        raise DataError(
            f"{name} contains {array[tuple(index)]} at {index}: only finite numbers of type {array.dtype} are allowed"
        )
    return array


def _check_numbers(value: Any, name: str) -> None:
    """Check that nested lists contain only numbers.

    NumPy would convert booleans, and would give each number beside a text the size of this text.

    Raises
    ------
    DataError : a value is not a number; the message shows it.
    """
    left = [value]
    while left:
        part = left.pop()
        if set(map(type, part)) <= _NUMBERS:
            continue
        for one in part:
            if not (isinstance(one, list | tuple) or _is_plain_number(one)):
                raise DataError(f"{name} contains {_shown(one)}: only numbers are allowed")
        left.extend(one for one in reversed(part) if isinstance(one, list | tuple))


def _is_plain_number(value: Any) -> bool:
    numeric = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
    return numeric or (isinstance(value, Real) and not isinstance(value, bool))


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value[:40] if isinstance(value, str | bytes) else value)[:40]


def match_columns(wanted: Sequence[str], given: Sequence[str]) -> list[int]:
    """Return for each wanted column its index in ``given``. Case and surrounding blanks of names are ignored.

    Raises
    ------
    DataError : names are missing, unknown or repeated; the message lists them all.
    """
    indices = {_plain(name): index for index, name in enumerate(given)}
    names = [_plain(name) for name in wanted]
    if len(indices) == len(given) and len(given) == len(names):
        try:
            return [indices[name] for name in names]
        except KeyError:
            pass
    missing = [name for name, plain in zip(wanted, names, strict=True) if plain not in indices]
    extra = [name for name in given if _plain(name) not in set(names)]
    twice = [name for name, count in Counter(map(_plain, given)).items() if count > 1]
    faults = {"missing": missing, "unknown": extra, "repeated": twice}
    message = "; ".join(f"{what}: {_listed(found)}" for what, found in faults.items() if found)
    raise DataError(f"the columns do not match: {message}")


def _listed(names: Sequence[str]) -> str:
    """Return the first names for a message, long names truncated."""
    shown = [
        repr(name[:_MAX_NAME_CHARACTERS] + ("..." if len(name) > _MAX_NAME_CHARACTERS else ""))
        for name in names[:_MAX_NAMES]
    ]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _plain(name: str) -> str:
    return name.strip().lower()


def read_training_data(
    folder: Path, *, task: Task | None = None
) -> tuple[NDArray[np.float64], tuple[str, ...], NDArray[Any], tuple[str, ...]]:
    """Read ``X_train.csv`` and ``y_train.csv`` of a folder.

    Parameters
    ----------
    task : with ``"regression"``, targets must also be numbers.

    Returns
    -------
    X : float64, shape (n, d), finite.
    columns : names of the columns of X.
    y : shape (n,), or (n, k) for k columns: float64, int64, bool or texts.
    y_columns : names of the columns of y.

    Raises
    ------
    DataError : a file is missing, empty or ragged, or has a value that is not a number; the message names the file and row.
    """
    x_path, y_path = folder / X_FILE, folder / Y_FILE
    absent = [str(path) for path in (x_path, y_path) if not path.is_file()]
    if absent:
        raise DataError(f"there is no {' and no '.join(absent)}: a worker needs its data in the folder with its name")
    columns, frame = _frame(x_path)
    rows = np.ascontiguousarray(
        np.stack([_numeric(x_path, name, frame.iloc[:, i]) for i, name in enumerate(columns)], 1)
    )
    y_columns, targets = _frame(y_path)
    if len(targets) != len(rows):
        raise DataError(
            f"{x_path} has {counted(len(rows), 'row')} but {y_path} has {len(targets)}: the numbers must be equal"
        )
    read = _numeric if task == "regression" else _target
    values = [read(y_path, name, targets.iloc[:, i]) for i, name in enumerate(y_columns)]
    return rows, columns, values[0] if len(values) == 1 else np.stack(values, 1), y_columns


def _frame(path: Path) -> tuple[tuple[str, ...], Any]:
    """Return the column names in the first line, and a frame of the other lines."""
    frame = read_csv(path, header=True)
    if not len(frame):
        raise DataError(f"{path} has no row below its header")
    first = frame.index[0]
    if first != 0 or frame.index.nlevels > 1:  # pandas takes the extra cells of longer rows as an index
        raise DataError(f"{path}, row 1: it has more cells than the header has names")
    columns = tuple(str(name).strip() for name in frame.columns)
    nameless = [index for index, name in enumerate(columns, 1) if not name or name.startswith("Unnamed: ")]
    if nameless:
        raise DataError(f"{path}: column {nameless[0]} has no name in the header (write no index column)")
    counted = tuple(map(str, range(len(columns))))  # pandas' default names of columns
    if columns != counted and all(map(_is_number, columns)):
        raise DataError(
            f"{path} must start with a header of names; it starts with the numbers {', '.join(columns)[:60]}"
        )
    twice = [name for name, count in Counter(map(_plain, columns)).items() if count > 1]
    if twice:
        raise DataError(f"{path}: the column name {twice[0]!r} is repeated")
    return columns, frame


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numeric(path: Path, name: str, column: Any) -> NDArray[np.float64]:
    import pandas

    _check_complete(path, name, column)
    try:
        values = pandas.to_numeric(column, errors="coerce").to_numpy(np.float64)
    except OverflowError:  # a whole number beyond the range of float64
        values = np.array([float(text) if _is_number(text) else np.nan for text in map(str, column)])
    finite = np.isfinite(values)
    if not finite.all():
        index = int(np.argmin(finite))
        what = "is not finite" if np.isinf(values[index]) else "is not a number"
        raise DataError(f"{path}, row {index + 1}, column {name!r}: {str(column.iloc[index])[:40]!r} {what}")
    return np.asarray(values)


def _target(path: Path, name: str, column: Any) -> NDArray[Any]:
    _check_complete(path, name, column)
    kind = getattr(column.dtype, "kind", "O")
    if kind == "b":
        return np.asarray(column.to_numpy(np.bool_))
    if kind in "iu":
        return np.asarray(column.to_numpy(np.int64))
    return _numeric(path, name, column) if kind == "f" else np.array([str(text).strip() for text in column])


def _check_complete(path: Path, name: str, column: Any) -> None:
    missing = column.isna().to_numpy()
    if missing.any():
        raise DataError(f"{path}, row {int(np.argmax(missing)) + 1}: the column {name!r} has no value")
