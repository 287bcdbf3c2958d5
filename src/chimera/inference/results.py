"""Results in the order of their inputs, as lines of JSON or as a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.training.progress.history import atomically

ENDINGS = (".jsonl", ".ndjson", ".parquet")
_COLUMNS = ("query", "result")


def row(index: int, query: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written of one query.

    Parameters
    ----------
    index : its place among the inputs, from 0.
    answer : ``{"result": value}`` or ``{"error": text}``.
    """
    return {"index": index, "query": query, **answer}


def lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield rows as lines of JSON. A number in a query that is not finite becomes ``null``."""
    encode = msgspec.json.Encoder(enc_hook=_listed).encode
    for each in rows:
        yield encode(each) + b"\n"


def write_lines(rows: Iterable[Mapping[str, Any]], stream: IO[bytes]) -> int:
    """Write rows to a stream, such as the standard output, as lines of JSON; return how many."""
    count = 0
    for line in lines(rows):
        stream.write(line)
        count += 1
    stream.flush()
    return count


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return where results are to be written.

    Raises
    ------
    ConfigurationError : its ending says no format, its folder is not there, or the library of its format is not.
    """
    target = Path(path).expanduser()
    if target.suffix not in ENDINGS:
        raise ConfigurationError(f"{str(path)!r}: the ending says the format, one of {', '.join(ENDINGS)}")
    if not target.parent.is_dir():
        raise ConfigurationError(f"{str(path)!r}: there is no folder {str(target.parent)!r}")
    if target.suffix == ".parquet":
        _pyarrow()
    return target


def save(rows: Iterable[Mapping[str, Any]], path: str | os.PathLike[str]) -> int:
    """Write rows to a file, whole or not at all, in the format that its ending says; return how many.

    The columns of a Parquet file are ``index``, ``query``, ``result`` and ``error``. Queries, and results, have a type of
    their own where all of them agree, else they are JSON texts. It is put together in memory.

    Raises
    ------
    ConfigurationError : as for `check_path`.
    RunError : it cannot be written; what was there before is untouched.
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
    """Return values as a column of their own type, or, where they have none in common, as JSON texts."""
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
    """Whether a type holds a dictionary without keys, for which Parquet has no form."""
    if pyarrow.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_has_empty_struct(pyarrow, kind.field(i).type) for i in range(kind.num_fields))


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
