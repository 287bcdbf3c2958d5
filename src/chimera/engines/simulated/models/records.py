"""Rows of CSV files with times, devices and paths: bounded, and checked value by value."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from chimera.core.errors import ConfigurationError

MAX_ROWS = 1_000_000
MAX_BYTES = 256 * 2**20
MAX_LINE = 4096


class Record:
    """One row of a file.

    Parameters
    ----------
    where : the file and the line, for errors.
    values : the texts of the row, by column.
    """

    __slots__ = ("_values", "_where")

    def __init__(self, where: str, values: dict[str, str]) -> None:
        self._where, self._values = where, values

    def text(self, column: str) -> str:
        """Return a text, which must not be empty."""
        return self._values[column] or self.refuse(column, "is empty")

    def number(self, column: str, *, above_zero: bool = False, finite: bool = True) -> float:
        """Return a number of zero or more, or above zero; ``inf`` only if it need not be finite."""
        text = self._values[column]
        try:
            value = float(text)
        except ValueError:
            self.refuse(column, f"is {text!r}: it must be a number")
        if not (value > 0 if above_zero else value >= 0):  # NaN fails both
            self.refuse(column, f"is {text}: it must be {'above zero' if above_zero else 'zero or more'}")
        if finite and value == math.inf:
            self.refuse(column, f"is {text}: it must be finite")
        return value

    def optional(self, column: str, **limits: bool) -> float | None:
        """Return a number as `number` does; None if the file lacks the column or the row its value."""
        return self.number(column, **limits) if self._values.get(column) else None

    def refuse(self, column: str, reason: str) -> NoReturn:
        """Raise ConfigurationError about the value in a column."""
        raise ConfigurationError(f"{self._where}, column {column!r}: the value {reason}")


def read_records(path: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the rows of a CSV file with a header, one at a time.

    Parameters
    ----------
    columns, optional : the columns that the header must and may name, in any order.

    Raises
    ------
    ConfigurationError : the file cannot be read, has an unusable header or row, no row, or too many rows.
    """
    try:
        if (size := Path(path).stat().st_size) > MAX_BYTES:
            raise ConfigurationError(f"{path} has {size} bytes: at most {MAX_BYTES} can be read")
        if not Path(path).is_file():
            raise ConfigurationError(f"{path} cannot be read: it is not a file")
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            yield from _rows(path, csv.reader(_lines(path, file), strict=True), columns, optional)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path} is no CSV file in UTF-8: {error}") from error


def _lines(path: str, file: TextIO) -> Iterator[str]:
    """Yield lines, none of which is so long that its values would take much memory."""
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise ConfigurationError(f"{path} has a line of more than {MAX_LINE} characters")
        yield line


def _rows(path: str, reader: Iterator[list[str]], columns: Sequence[str], optional: Sequence[str]) -> Iterator[Record]:
    line_of: Callable[[], int] = lambda: reader.line_num  # type: ignore[attr-defined]  # noqa: E731 - of csv.reader
    header = [name.strip() for name in next(reader, [])]
    allowed = [*columns, *optional]
    missing = [name for name in columns if name not in header]
    unknown = [name for name in header if name not in allowed]
    if missing or unknown or len(set(header)) < len(header):
        known = ", ".join([*columns, *(f"{name} (optional)" for name in optional)])
        raise ConfigurationError(f"{path}, line 1: the columns are {', '.join(header) or 'missing'}; give {known}")
    rows = 0
    for values in reader:
        if not values:
            continue
        where = f"{path}, line {line_of()}"
        if len(values) != len(header):
            raise ConfigurationError(f"{where}: {len(values)} values, and the header has {len(header)} columns")
        if (rows := rows + 1) > MAX_ROWS:
            raise ConfigurationError(f"{where}: at most {MAX_ROWS} rows can be read")
        yield Record(where, dict(zip(header, (value.strip() for value in values), strict=True)))
    if not rows:
        raise ConfigurationError(f"{path} has no row below its header")
