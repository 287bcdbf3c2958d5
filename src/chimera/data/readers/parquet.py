"""Parquet files: read as a whole, or one row group after another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chimera.core.errors import DataError, MissingExtraError

_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}
"""Estimated size of a decoded value by its type in the file, which may be wider than that of the column; otherwise 8 bytes."""


class RowGroups:
    """A Parquet file that is read one row group at a time. Each process opens it for itself.

    Parameters
    ----------
    path : the file.
    columns : names of the columns to read; default all.

    Attributes
    ----------
    names : names of the columns.
    bounds : first row of each row group, and the number of all rows; shape (groups + 1,).
    categorical : names of the columns that are stored as categories.
    bytes : estimated size of the decoded columns of each row group.

    Raises
    ------
    DataError : the file is damaged, or has no such column.
    MissingExtraError : pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self.path, self._columns = path, None if columns is None else list(columns)
        self._absolute = path.absolute()  # a worker may have another working directory
        self._opened: tuple[int, Any] | None = None
        self._rows: int | None = None
        file = self._file()
        names = file.schema_arrow.names
        for column in columns or ():
            if column not in names:
                raise DataError(f"{path} has no column {column!r}; its columns: {', '.join(names)}")
        self.names: list[str] = list(names if columns is None else columns)
        found = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        self.bounds = np.cumsum([0, *(group.num_rows for group in found)])
        self.categorical = {field.name for field in file.schema_arrow if hasattr(field.type, "index_type")}
        self.bytes = [sum(map(_decoded_bytes, self._chunks(group))) for group in found]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def frame(self, group: int, columns: Sequence[str] | None = None) -> Any:
        """Return a row group as a pandas frame: these columns, or by default all chosen ones."""
        chosen = self._columns if columns is None else list(columns)
        return self._read(lambda file: file.read_row_group(group, chosen, use_threads=False).to_pandas())

    def whole(self) -> Any:
        """Return all rows as a pandas frame."""
        return self._read(lambda file: file.read(self._columns).to_pandas())

    def _chunks(self, group: Any) -> Iterator[Any]:
        for place in range(group.num_columns):
            chunk = group.column(place)
            if self._columns is None or chunk.path_in_schema in self._columns:
                yield chunk

    def _file(self) -> Any:
        """Return the file, opened by this process: a forked process would share its position."""
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                from pyarrow import parquet
            except ImportError as error:
                raise MissingExtraError("a Parquet file", "pyarrow", "tables") from error
            file = self._checked(lambda: parquet.ParquetFile(self._absolute))
            if self._rows not in (None, file.metadata.num_rows):
                raise DataError(
                    f"{self.path} has {file.metadata.num_rows:,} rows, and had {self._rows:,}: it was changed"
                )
            self._opened, self._rows = (os.getpid(), file), file.metadata.num_rows
        return self._opened[1]

    def _read(self, function: Any) -> Any:
        file = self._file()
        return self._checked(lambda: function(file))

    def _checked(self, function: Any) -> Any:
        import pyarrow

        try:
            return function()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path} cannot be read as a Parquet file: {' '.join(str(error).split())}") from error

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": None}


def _decoded_bytes(chunk: Any) -> int:
    """Return the estimated size of a decoded column chunk. Its size in the file, uncompressed, is small if values repeat."""
    return max(int(chunk.total_uncompressed_size), int(chunk.num_values) * _VALUE_BYTES.get(chunk.physical_type, 8))


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Read a Parquet file into a pandas frame.

    Parameters
    ----------
    columns : names of the columns to read; default all.

    Raises
    ------
    DataError : the file is damaged, has no such column, or is larger than half of this machine's memory.
    MissingExtraError : pyarrow is not installed.
    """
    groups = RowGroups(path, columns)
    if exceeds_memory(groups):
        raise DataError(
            f"{path} has {sum(groups.bytes) / 2**30:.1f} GiB, more than half of this machine's memory: select columns, "
            "or give the path to the run or to Split.of, which read rows lazily"
        )
    return groups.whole()


def exceeds_memory(groups: RowGroups) -> bool:
    """Return whether the columns need more than half of the memory of this machine."""
    return bool(sum(groups.bytes) > memory_bytes() // 2)


def memory_bytes() -> int:
    """Return the size of the memory of this machine."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
