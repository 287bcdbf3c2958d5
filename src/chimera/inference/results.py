"""Writers of results in input order: JSON lines, or a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.engines.http import wire
from chimera.inference.coordinator.file_queries import FileQueries
from chimera.inference.journal.journal import Journal
from chimera.inference.journal.records import Accepted
from chimera.training.progress.history import atomically

ENDINGS = (".jsonl", ".ndjson", ".parquet")
_COLUMNS = ("query", "result")


def row(index: int, query: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one query.

    Parameters
    ----------
    index : index of the query, from 0.
    answer : ``{"result": value}`` or ``{"error": text}``.
    """
    return {"index": index, "query": query, **answer}


def stored(journal: Journal, accepted: Accepted, first: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a job's results in the journal, in input order, batch by batch.

    Parameters
    ----------
    accepted : the job. Queries that stay in a file are None if the file has changed. Arrays in queries become lists, and
        values that JSON cannot represent, such as bytes, None.
    first : index of the first query.
    """
    files = FileQueries(accepted.files)
    for output in journal.outputs(accepted.job, first):
        if accepted.files:
            queries = files.read_or_none(output.first, output.count)
        else:
            queries = journal.queries(accepted.job, output.first, output.count)
        numbered = zip(range(output.first, output.first + output.count), queries, wire.unpack(output.body), strict=True)
        yield [row(index, _plain(query), answer) for index, query, answer in numbered if index >= first]


def lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield rows as JSON lines. A number in a query that is not finite becomes ``null``."""
    encode = msgspec.json.Encoder(enc_hook=_listed).encode
    for each in rows:
        yield encode(each) + b"\n"


def write_lines(rows: Iterable[Mapping[str, Any]], stream: IO[bytes]) -> int:
    """Write rows to a binary stream as JSON lines; return their number."""
    count = 0
    for line in lines(rows):
        stream.write(line)
        count += 1
    stream.flush()
    return count


def check_path(path: str | os.PathLike[str]) -> Path:
    """Check the path of a file of results, and return it.

    Raises
    ------
    ConfigurationError : the ending is unknown, the folder does not exist, or the library of the format is not installed.
    """
    target = Path(path).expanduser()
    if target.suffix not in ENDINGS:
        raise ConfigurationError(f"{str(path)!r}: the ending must be one of {', '.join(ENDINGS)}")
    if not target.parent.is_dir():
        raise ConfigurationError(f"{str(path)!r}: there is no folder {str(target.parent)!r}")
    if target.suffix == ".parquet":
        _pyarrow()
    return target


def save(rows: Iterable[Mapping[str, Any]], path: str | os.PathLike[str]) -> int:
    """Write rows to a file atomically, in the format of its ending; return their number.

    The columns of a Parquet file are ``index``, ``query``, ``result`` and ``error``. Queries and results have a common type if
    there is one, else they are JSON texts. The table is built in memory.

    Raises
    ------
    ConfigurationError : as for `check_path`.
    RunError : the file cannot be written; an existing file is unchanged.
    """
    target = check_path(path)
    with atomically(target) as file:
        if target.suffix == ".parquet":
            return _write_parquet(rows, file)
        return write_lines(rows, file)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("a Parquet file", "pyarrow", "inference") from error
    return pyarrow


def _write_parquet(rows: Iterable[Mapping[str, Any]], file: IO[bytes]) -> int:
    pyarrow = _pyarrow()
    held = list(rows)
    columns = {
        "index": pyarrow.array([each["index"] for each in held], pyarrow.int64()),
        **{name: _column(pyarrow, [each.get(name) for each in held]) for name in _COLUMNS},
        "error": pyarrow.array([each.get("error") for each in held], pyarrow.string()),
    }
    table = pyarrow.table({name: columns[name] for name in ("index", *_COLUMNS, "error")})
    pyarrow.parquet.write_table(table, file)
    return len(held)


def _column(pyarrow: Any, values: list[Any]) -> Any:
    """Return values as a column of their common type, or as JSON texts if there is none."""
    listed = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    try:
        column = pyarrow.array(listed)
        if column.to_pylist() == listed and not _has_empty_struct(pyarrow, column.type):
            return column
    except (pyarrow.ArrowException, OverflowError, TypeError):
        pass
    encode = msgspec.json.Encoder(enc_hook=_listed).encode
    return pyarrow.array([None if value is None else encode(value).decode() for value in listed], pyarrow.string())


def _has_empty_struct(pyarrow: Any, kind: Any) -> bool:
    """Return whether a type contains a dictionary without keys, which Parquet cannot represent."""
    if pyarrow.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_has_empty_struct(pyarrow, kind.field(i).type) for i in range(kind.num_fields))


def _plain(value: Any) -> Any:
    """Return a query as values that JSON can represent: the results of a job must be readable whatever its queries are."""
    if isinstance(value, np.ndarray | np.generic):
        listed = value.tolist()
        return listed if value.dtype.kind in "biufU" else _plain(listed)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value if isinstance(value, bool | int | float | str) else None


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
