"""Conversion of tables (pandas frames) to float32 features and target columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.counted import counted
from chimera.core.errors import DataError
from chimera.data.readers.number_texts import odd_among_numbers

Target: TypeAlias = str | int | Sequence[str | int] | None

NO_LABELS = {"labels": None, "groups": None}
"""The options of a test part: it needs neither labels nor groups."""

SUFFIXES = (".csv", ".tsv", ".txt", ".data")
"""Endings of files that are read as tables; also with ``.gz`` appended."""

MAX_CATEGORIES = 50
"""Largest number of one-hot columns of a text column that is not categorical; more means identifiers or free text."""


class TableOptions(NamedTuple):
    """The purposes of the columns of a table, see `Dataset.of`. Labels and groups may be arrays or functions as well.

    Attributes
    ----------
    is_test : whether the table is a test part, which needs neither labels nor groups.
    """

    target: Target = None
    drop: Sequence[str] = ()
    labels: Any = None
    groups: Any = None
    is_test: bool = False

    def needed(self) -> list[tuple[str, Any]]:
        """Return the name and the given value of labels and groups; None for a test part."""
        return [("labels", None if self.is_test else self.labels), ("groups", None if self.is_test else self.groups)]

    def without_columns(self, frame: Any) -> Any:
        """Return the frame without dropped columns and without the column of the groups, unless that is a target.

        Raises
        ------
        DataError : the frame has no such column.
        """
        left_out = self.left_out(frame.columns)
        return with_columns(frame, left_out, ()) if left_out else frame

    def left_out(self, columns: Iterable[Any]) -> list[Any]:
        """Return the names of the columns that are no inputs or targets: the dropped ones, and that of the groups."""
        wanted = [self.target] if isinstance(self.target, str | int) else list(self.target or ())
        of_groups = [name for name in columns if str(name) == self.groups and name not in wanted]
        return list(dict.fromkeys([*self.drop, *of_groups]))


def with_columns(frame: Any, drop: Sequence[str], one_hot: Sequence[str]) -> Any:
    """Return a frame without the columns ``drop``, and with the columns ``one_hot`` as categories.

    Raises
    ------
    DataError : the frame has no such column.
    """
    for column in (*drop, *one_hot):
        if column not in frame.columns:
            raise DataError(f"the table has no column {column!r}; its columns: {', '.join(map(str, frame.columns))}")
    return frame.drop(columns=list(drop)).astype(dict.fromkeys(one_hot, "category"))


def split_target(frame: Any, target: Target = None) -> tuple[Any, Any]:
    """Return the feature columns and the target of a frame.

    ``target`` is the name or index of a column, or a list of them; default the last column.
    """
    check_names(frame)
    if frame.shape[1] < 2:
        raise DataError(
            f"the table has {counted(frame.shape[1], 'column')}: at least one feature and a target are needed"
        )
    wanted = [-1] if target is None else [target] if isinstance(target, str | int) else list(target)
    places = [_place(frame, column) for column in wanted]
    rest = [place for place in range(frame.shape[1]) if place not in places]
    if not rest:
        raise DataError("every column of the table is a target: no feature is left")
    several = not (target is None or isinstance(target, str | int))
    return frame.iloc[:, rest], frame.iloc[:, places] if several else frame.iloc[:, places[0]]


def check_names(frame: Any) -> None:
    """Raise DataError if two columns have the same name."""
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"the table has several columns {str(twice[0])!r}: rename or drop all but one")


def _place(frame: Any, column: str | int) -> int:
    names = list(frame.columns)
    if column in names:
        return names.index(column)
    number = int(column) if isinstance(column, int) or column.removeprefix("-").isdecimal() else None
    if number is None or not -len(names) <= number < len(names):
        if str(column) in names:  # a year, which a command line passes as an integer
            return names.index(str(column))
        raise DataError(f"the table has no column {column!r}; its columns: {', '.join(map(str, names))}")
    return number % len(names)


def features(frame: Any, like: Sequence[str] | None = None) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return the columns as float32, shape (n, k), and their names.

    A text column becomes one-hot columns named ``column=text``. ``like`` are the names of the train part: the test part gets
    the same columns, and a text that the train part does not have is 0 in all of them.
    """
    check_names(frame)
    blocks, names = [], []
    for name in frame.columns:
        block, own = _encoded(str(name), frame[name], like)
        blocks.append(block)
        names += own
    if like is not None and tuple(names) != tuple(like):
        odd = next(iter(set(names) ^ set(like)), "their order")
        raise DataError(f"the columns of the test part differ from those of the train part: {odd}")
    return np.concatenate(blocks, axis=1, dtype=np.float32), tuple(names)


def categories(name: str, series: Any) -> list[Any] | None:
    """Return the categories of a column, in the order of their one-hot columns; None for a column of numbers.

    Raises
    ------
    DataError : the column lacks values, or holds other things than numbers, Booleans and texts.
    """
    import pandas.api.types as kinds

    _check_complete(name, series)
    series = _inferred(series)
    if kinds.is_numeric_dtype(series.dtype) and not kinds.is_complex_dtype(series.dtype):
        return None
    if isinstance(series.dtype, _categorical()):
        return list(series.cat.categories)
    return sorted(set(_texts(name, series)))


def check_categories(name: str, known: Collection[Any], series: Any) -> None:
    """Check the texts of a column that is not categorical.

    Raises
    ------
    DataError : there are more than `MAX_CATEGORIES`, or they are numbers in another notation.
    """
    if isinstance(series.dtype, _categorical()):
        return
    if (odd := odd_among_numbers(known)) is not None:
        raise DataError(
            f"the column {name!r} holds numbers, but also {odd!r}: convert it to numbers and fill in or drop missing ones, "
            "leave it out (drop), or encode it as one column for each text (one_hot; in a frame, make it categorical)"
        )
    if len(known) > MAX_CATEGORIES:
        raise DataError(
            f"the column {name!r} holds {len(known)} different texts, more than {MAX_CATEGORIES}: leave it out (drop), "
            "encode it as one column for each text (one_hot; in a frame, make it categorical), or convert it to numbers"
        )


def _encoded(name: str, series: Any, like: Sequence[str] | None) -> tuple[NDArray[Any], list[str]]:
    own = categories(name, series)
    series = _inferred(series)
    if own is None:
        with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is reported later
            return series.to_numpy(np.float32)[:, np.newaxis], [name]
    texts = _texts(name, series)
    if like is not None:
        known = [feature.removeprefix(f"{name}=") for feature in like if feature.startswith(f"{name}=")]
    else:
        check_categories(name, own, series)
        known = [str(category) for category in own]
    place = {text: index for index, text in enumerate(known)}
    codes = np.array([place.get(text, -1) for text in texts])
    return codes[:, np.newaxis] == np.arange(len(known)), [f"{name}={text}" for text in known]


def target_values(target: Any) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Return the values of one or more target columns, and the classes of a categorical column."""
    if getattr(target, "ndim", 1) == 2:
        for name in target.columns:
            _check_complete(str(name), target[name])
        return target.to_numpy(), None
    name = str(target.name)
    _check_complete(name, target)
    target = _inferred(target)
    if isinstance(target.dtype, _categorical()):
        return np.array(_texts(name, target)), tuple(str(category) for category in target.cat.categories)
    if target.dtype.kind in "biuf":
        return target.to_numpy({"b": np.bool_, "f": np.float64}.get(target.dtype.kind, np.int64)), None
    return np.array(_texts(name, target)), None


def _inferred(series: Any) -> Any:
    """Return a series with the type of its values; decimals become real numbers."""
    import pandas.api.types as kinds

    series = series.infer_objects()
    decimal = series.dtype.kind == "O" and kinds.infer_dtype(series) == "decimal"
    return series.astype(np.float64) if decimal else series


def _check_complete(name: str, series: Any) -> None:
    missing = np.flatnonzero(series.isna().to_numpy())
    if len(missing) and len(missing) == len(series):
        raise DataError(f"the column {name!r} is empty: leave it out (drop)")
    if len(missing):
        raise DataError(
            f"the column {name!r} lacks {len(missing)} of {len(series)} values, the first in row {missing[0]}: "
            "fill them in or drop those rows"
        )


def _texts(name: str, series: Any) -> list[str]:
    import pandas.api.types as kinds

    kind = kinds.infer_dtype(series)
    if kind not in ("string", "categorical"):
        raise DataError(
            f"the column {name!r} holds {kind} values: only numbers, Booleans and texts can be used: convert it, or leave "
            "it out (drop)"
        )
    return [str(text) for text in series]


def _categorical() -> type:
    import pandas

    return pandas.CategoricalDtype
