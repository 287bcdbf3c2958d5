"""CSV files as pandas frames: separator, header, decimal comma; errors of one line."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np

from chimera.core.errors import DataError
from chimera.data.readers.decompression import GzipStream
from chimera.data.readers.number_texts import MISSING

_UNNAMED = "Unnamed: 0"  # the name that pandas gives to a first column without one
_SEPARATORS = "\t;|, "  # in this order: a comma may also be a decimal sign, and a text may contain spaces
_SAMPLE_LINES = 20
_SHOWN_CELLS = 6
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")


def read_csv(path: Path, *, header: bool | None = None) -> Any:
    """Read a CSV file, gzipped or not, into a pandas frame.

    The separator is the one that splits the first lines into equal numbers of cells. If ``header`` is None, the first line
    is a header if no cell in it is a number.

    Raises
    ------
    DataError : the file is empty, ragged or not text, or decompresses to too many bytes; or ``header`` is None, and the first
        line may have names, such as years, or values.
    """
    import pandas

    try:
        lines = _first_lines(path)
        separator = separator_of(lines)
        cells = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
        detect = header is None
        if detect:
            header = bool(cells) and not any(map(is_number, cells[0]))
        named = list(filter(None, map(str.strip, cells[0]))) if header and cells else []
        if repeated := [name for name, count in Counter(named).items() if count > 1]:
            raise DataError(f"{path} has several columns {repeated[0]!r}: rename or remove all but one")
        comma = separator == ";" and any(_DECIMAL_COMMA.fullmatch(cell) for row in cells for cell in row)
        with _opened(path) as file:
            frame = pandas.read_csv(
                file, sep=separator, header=0 if header else None, skipinitialspace=True, decimal="," if comma else "."
            )
    except pandas.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty") from error
    except (pandas.errors.ParserError, csv.Error) as error:
        raise DataError(
            f"{path} is not a table with equal numbers of cells in all lines: {str(error).strip()}"
        ) from error
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        encoding = isinstance(error, UnicodeDecodeError)
        advice = (
            "; if it has another encoding than UTF-8, read it by pandas.read_csv, and give the frame"
            if encoding
            else ""
        )
        raise DataError(f"{path} is not a text file: {error}{advice}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    frame.columns = [str(name).strip() for name in frame.columns]  # as in "a , b"
    if not len(frame):
        raise DataError(f"{path} is empty: it has a header and no rows")
    _check_first_line(cells, frame, path, header=header, detected=detect)
    return frame


def _check_first_line(cells: list[list[str]], frame: Any, path: Path, *, header: bool | None, detected: bool) -> None:
    """Raise DataError if the names of the columns are not certain; ``cells`` are those of the first lines."""
    first = cells[0]
    if header and len(cells[1]) > len(first):  # pandas took the first cells as an index: all names would move
        raise DataError(f"the first line of {path} has {len(first)} cells and the others more: name each column")
    if detected and not header and _may_be_names(first, frame):
        shown = ", ".join(first[:_SHOWN_CELLS]) + (", ..." if len(first) > _SHOWN_CELLS else "")
        raise DataError(
            f"the first line of {path} ({shown}) may be names of columns or values: set header to true or false"
        )


def _may_be_names(first: list[str], frame: Any) -> bool:
    """Return whether a first line with numbers may be a header; ``frame`` has it as its first row.

    Names are texts of which none occurs again in its column, beside numbers such as years; or they count the columns, as
    pandas does for an array.
    """
    filled = [cell.strip() for cell in first if cell.strip()]
    if len(filled) > 2 and any(filled == [str(start + place) for place in range(len(filled))] for start in (0, 1)):
        return True
    texts = [place for place, cell in enumerate(first) if not (cell.strip().lower() in MISSING or is_number(cell))]
    again = (
        frame.iloc[1:, place].astype(str).str.strip().str.lower() == first[place].strip().lower() for place in texts
    )
    return bool(texts) and not any(column.any() for column in again)


def check_first_column(frame: Any, dropped: Collection[str], path: object) -> None:
    """Raise DataError if the first column of a CSV file is the index of a frame, unless it is among the dropped ones."""
    first = str(frame.columns[0])
    if first != _UNNAMED or first in dropped or len(frame.columns) < 2:
        return
    numbers = frame.iloc[:, 0].to_numpy()
    if numbers.dtype.kind == "i" and numbers[0] in (0, 1) and (np.diff(numbers) == 1).all():
        raise DataError(
            f"the first column of {path} has no name and numbers the rows, as pandas writes an index: leave it out by "
            f"drop=[{first!r}], or write the file with index=False"
        )


def _opened(path: Path) -> IO[bytes]:
    return io.BufferedReader(GzipStream(path), 1 << 16) if path.suffix == ".gz" else path.open("rb")


def _first_lines(path: Path) -> list[str]:
    with _opened(path) as content:
        file = io.TextIOWrapper(
            content, encoding="utf-8-sig"
        )  # -sig: some spreadsheet programs write a byte order mark
        return list(itertools.islice(filter(str.strip, file), _SAMPLE_LINES))


def separator_of(lines: list[str]) -> str:
    """Return the separator that splits all lines into equal numbers of cells; a comma if there is none."""
    for separator in _SEPARATORS:
        try:
            widths = {len(row) for row in csv.reader(lines, delimiter=separator, skipinitialspace=True)}
        except csv.Error:  # a long line without this separator exceeds the limit of a cell
            continue
        if len(widths) == 1 and widths.pop() > 1:
            return separator
    return ","


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with a decimal point or comma."""
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True
