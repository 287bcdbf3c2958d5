"""What a user names as inputs, as a stream of queries: values that JSON has a form for, and NumPy rows."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.sources import is_frame
from chimera.inference import input_files

MAX_QUERIES = 10_000_000
MAX_BYTES = 1 << 30
"""Of all queries of a job; an image counts as its name."""


class Queries(Iterator[Any]):
    """The queries, one after another, counted.

    Parameters
    ----------
    queries : in their order.
    source : what messages call it.
    max_queries, max_bytes : beyond which reading ends with an error.

    Attributes
    ----------
    count, bytes : of those that were read so far.

    Raises
    ------
    DataError : there are none.
    """

    def __init__(
        self, queries: Iterable[Any], source: str, *, max_queries: int = MAX_QUERIES, max_bytes: int = MAX_BYTES
    ) -> None:
        self.count = self.bytes = 0
        self._source, self._max_queries, self._max_bytes = source, max_queries, max_bytes
        rest = iter(queries)
        for first in rest:
            self._rest: Iterator[Any] = itertools.chain([first], rest)
            return
        raise DataError(f"{source} holds no queries")

    def __next__(self) -> Any:
        query = next(self._rest)
        self.count += 1
        self.bytes += _size(query)
        if self.count > self._max_queries:
            raise DataError(f"{self._source} holds more than {self._max_queries} queries: make several jobs of them")
        if self.bytes > self._max_bytes:
            raise DataError(
                f"{self._source} holds queries of more than {self._max_bytes} bytes: make several jobs of them"
            )
        return query


def queries(source: Any, *, max_queries: int = MAX_QUERIES, max_bytes: int = MAX_BYTES) -> Queries:
    """Return the queries that a source holds, read as they are asked for.

    Parameters
    ----------
    source : the name of a file, a folder or a pattern, a path or any URL of fsspec's; or, from Python, a list, an array (a row
        a query), a data frame (a dictionary a row) or any iterable of queries.

        The ending of a file says what is in it: an image is a query by its name, which the worker opens; ``.txt`` has a query
        a line; ``.jsonl`` a value a line; ``.csv`` and ``.tsv`` a row a line, a dictionary if there is a line of names, else a
        list; ``.npy`` a row of its first axis. A folder stands for the images in it. ``.gz`` is unpacked. Files come in the
        order of their names.
    max_queries, max_bytes : beyond which reading ends with an error.

    Raises
    ------
    DataError : nothing is there, or nothing in it, or it cannot be read; in one line. What is wrong further down in a large
        file is raised when that is reached.
    """
    limits = {"max_queries": max_queries, "max_bytes": max_bytes}
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        if not isinstance(name, str):
            raise ConfigurationError("inputs are named by a text, not by bytes")
        return Queries(_of_location(name), repr(name), **limits)
    if is_frame(source):
        return Queries(map(_plain, source.to_dict("records")), "the data frame", **limits)
    if isinstance(source, Mapping | bytes | bytearray) or not (hasattr(source, "__iter__") or hasattr(source, "numpy")):
        raise ConfigurationError(
            f"inputs cannot be a {type(source).__name__}: give a list, an array, or the name of files"
        )
    if hasattr(source, "numpy"):  # a tensor
        source = source.numpy(force=True)
    if isinstance(source, np.ndarray) and not source.ndim:
        raise DataError("an array without axes has no rows")
    return Queries(map(_plain, source), f"the {type(source).__name__}", **limits)


def _of_location(name: str) -> Iterator[Any]:
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(name if "://" in name else str(Path(name).expanduser()))
        paths = _paths(files, root, name)
    except ImportError as error:
        raise ConfigurationError(f"{name!r} cannot be read: {str(error).partition(chr(10))[0]}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise DataError(f"{name!r} cannot be read: {error}") from error
    return itertools.chain.from_iterable(input_files.read(files, path) for path in paths)


def _paths(files: Any, root: str, name: str) -> list[str]:
    """Return the files that a name stands for, in order."""
    if files.isfile(root):
        found = [root]
    elif files.isdir(root):
        found = [path for path in files.find(root) if input_files.is_image(path) and not _hidden(path, root)]
        if not found:
            raise DataError(
                f"the folder {name!r} holds no images; for other files give a pattern, such as '{name.rstrip('/')}/*.txt'"
            )
    elif glob.has_magic(name):
        found = [path for path in files.glob(root) if files.isfile(path)]
        if not found:
            raise DataError(f"no file matches {name!r}")
    else:
        raise DataError(f"there is no file or folder {name!r}")
    for path in found:
        input_files.check(path)
    return sorted(found)


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path[len(root) :]).parts)


def _plain(query: Any) -> Any:
    """Return a query from Python as it can travel.

    Raises
    ------
    DataError : it cannot.
    """
    if isinstance(query, np.ndarray):
        if query.dtype == object:
            raise DataError("an array of objects cannot be a query: only numbers, truth values and texts can")
        return query
    if isinstance(query, np.generic):
        return query.item()
    if query is None or isinstance(query, bool | int | float | str):
        return query
    if isinstance(query, list | tuple):
        return [_plain(part) for part in query]
    if isinstance(query, Mapping):
        return {str(key): _plain(part) for key, part in query.items()}
    if isinstance(query, os.PathLike):
        return os.fspath(query)
    if hasattr(query, "numpy"):
        return query.numpy(force=True)
    raise DataError(
        f"a {type(query).__name__} cannot be a query: numbers, texts, lists, dictionaries and arrays can; "
        "images by their paths, or as arrays of pixels"
    )


def _size(query: Any) -> int:
    if isinstance(query, np.ndarray):
        return query.nbytes
    if isinstance(query, str):
        return len(query)
    if isinstance(query, list):
        return sum(map(_size, query)) + 2
    if isinstance(query, dict):
        return sum(len(key) + _size(part) for key, part in query.items()) + 2
    return 8
