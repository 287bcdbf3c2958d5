"""Rows of tables with a separator, read line by line."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from chimera.core.errors import DataError
from chimera.data.readers.csv_file import is_number, separator_of
from chimera.data.readers.number_texts import MISSING

_HEAD_LINES = 20  # lines from which the separator and the header are detected


def csv_rows(lines: Iterator[str], name: str) -> Iterator[Any]:
    """Yield each row of a table: a dictionary if the first line contains no number, else a list.

    Parameters
    ----------
    lines : the lines, without their ends.
    name : name of the file in error messages.

    Raises
    ------
    DataError : a row has another number of cells than the first, two columns have one name, or the first line may have names or
        values.
    """
    head = list(itertools.islice(filter(str.strip, lines), _HEAD_LINES))
    separator = separator_of(head)
    _check_first_line(head, separator, name)
    rows = csv.reader(_with_ends(itertools.chain(head, lines)), delimiter=separator, skipinitialspace=True)
    names: list[str] | None = None
    width = None
    try:
        for row in rows:
            if not row:
                continue
            if width is None:
                width = len(row)
                if not any(map(is_number, row)):
                    names = _names(row, name)
                    continue
            if len(row) != width:
                raise DataError(f"{name}, line {rows.line_num}: {len(row)} cells, the first line has {width}")
            cells = [_cell(cell, comma=separator == ";") for cell in row]
            yield cells if names is None else dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{name}, line {rows.line_num}: {error}") from error


def _names(row: list[str], name: str) -> list[str]:
    """Return the names of columns. Only empty ones may be equal: a row has the value of the last one."""
    names = [cell.strip() for cell in row]  # as in "a , b"
    if repeated := [each for each, count in Counter(filter(None, names)).items() if count > 1]:
        raise DataError(f"{name} has several columns {repeated[0]!r}: rename or remove all but one")
    return names


def _check_first_line(head: list[str], separator: str, name: str) -> None:
    """Raise DataError if the first line has numbers and is a header nevertheless: it has a text above a column of numbers."""
    try:
        first, *others = [
            row for row in csv.reader(_with_ends(iter(head)), delimiter=separator, skipinitialspace=True) if row
        ]
    except (csv.Error, ValueError):  # the reader of all rows reports the error; or the file is empty
        return
    if not any(map(is_number, first)):
        return
    for place, cell in enumerate(first):
        below = [row[place] for row in others if place < len(row) and row[place].strip().lower() not in MISSING]
        if cell.strip().lower() not in MISSING and not is_number(cell) and below and all(map(is_number, below)):
            raise DataError(
                f"{name}: the first line may be names of columns or values, since it has numbers, and the text {cell!r} above "
                "numbers: give each column a name that is no number"
            )


def _with_ends(lines: Iterator[str]) -> Iterator[str]:
    return (f"{line}\n" for line in lines)  # a quoted cell may span several lines


def _cell(cell: str, *, comma: bool) -> Any:
    """Return a number, a text, or None for an empty cell."""
    if not cell:
        return None
    if "_" in cell:  # Python would accept it in a number, other programs do not
        return cell
    number = cell.replace(",", ".") if comma else cell
    try:
        return int(number)
    except ValueError:
        try:
            value = float(number)
        except ValueError:
            return cell
    return value if math.isfinite(value) else cell
