"""Inputs of jobs: files, arrays, data frames or iterables, read as a stream of queries."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.readers.sources import is_frame
from chimera.inference import input_files
from chimera.inference.journal.records import InputFile
from chimera.inference.pieces import MAX_BYTES, MAX_QUERIES, size_of


class Queries(Iterator[Any]):
    """An iterator over queries that counts them.

    Parameters
    ----------
    queries : the queries, in order.
    source : name of the source in error messages.
    max_queries, max_bytes : limits; the iterator raises DataError beyond them.
    total_bytes : approximate size of all queries; None if it is unknown.
    files : returns the files whose queries were read so far, if the queries may stay in them; None: they must be copied.

    Attributes
    ----------
    first : the first query.
    count, bytes : number and size of the queries read so far.
    total_bytes, files : as above.

    Raises
    ------
    DataError : there are no queries.
    """

    def __init__(
        self,
        queries: Iterable[Any],
        source: str,
        *,
        max_queries: int = MAX_QUERIES,
        max_bytes: int = MAX_BYTES,
        total_bytes: int | None = None,
        files: Callable[[], list[InputFile]] | None = None,
    ) -> None:
        self.count = self.bytes = 0
        self.total_bytes, self.files = total_bytes, files
        self._source, self._max_queries, self._max_bytes = source, max_queries, max_bytes
        rest = iter(queries)
        for self.first in rest:
            self._rest: Iterator[Any] = itertools.chain([self.first], rest)
            return
        raise DataError(f"{source} contains no queries")

    def __next__(self) -> Any:
        query = next(self._rest)
        self.count += 1
        self.bytes += size_of(query)
        if self.count > self._max_queries:
            raise DataError(
                f"{self._source} contains more than {self._max_queries} queries: split them into several jobs"
            )
        if self.bytes > self._max_bytes:
            raise DataError(
                f"{self._source} contains queries of more than {self._max_bytes} bytes: split them into several jobs"
            )
        return query


def queries(source: Any, *, max_queries: int = MAX_QUERIES, max_bytes: int = MAX_BYTES) -> Queries:
    """Return the queries of a source. They are read lazily.

    Parameters
    ----------
    source : a file, folder or pattern, as a path or a URL of fsspec; or a list, an array (a query per row), a data frame (a
        dictionary per row) or any iterable of queries.

        The ending of a file selects its format. An image is one query, its name; the worker opens it. ``.txt`` has a query per
        line, ``.jsonl`` a JSON value per line. ``.csv`` and ``.tsv`` have a row per line: a dictionary if the first line has
        column names, else a list. ``.npy`` has a query per row of its first axis. A folder means the images in it. ``.gz`` is
        decompressed. Files are read in the order of their names.
    max_queries, max_bytes : limits of the job.

    Raises
    ------
    DataError : the source is missing, empty or unreadable; one line of text. An error further down in a file is raised when
        that line is read.
    ConfigurationError : the source has a type that cannot be read.
    """
    limits: dict[str, Any] = {"max_queries": max_queries, "max_bytes": max_bytes}
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        if not isinstance(name, str):
            raise ConfigurationError("the name of inputs must be a text, not bytes")
        found = _of_location(name)
        files = found.files if found.may_stay else None
        return Queries(found, repr(name), **limits, total_bytes=found.total_bytes, files=files)
    if is_frame(source):
        return Queries(map(_plain, source.to_dict("records")), "the data frame", **limits)
    if isinstance(source, Mapping | bytes | bytearray) or not (hasattr(source, "__iter__") or hasattr(source, "numpy")):
        raise ConfigurationError(
            f"inputs cannot be a {type(source).__name__}: use a list, an array, or the name of files"
        )
    if hasattr(source, "numpy"):  # a tensor
        source = source.numpy(force=True)
    if isinstance(source, np.ndarray) and not source.ndim:
        raise DataError("an array without axes has no rows")
    return Queries(map(_plain, source), f"the {type(source).__name__}", **limits)


class _Files(Iterator[Any]):
    """The queries in files, which are counted by file; ``may_stay``: whether a coordinator may read them there."""

    def __init__(self, files: Any, paths: list[str]) -> None:
        self.total_bytes = input_files.total_bytes(files, paths)
        self.may_stay = all(input_files.is_reference(input_files.name_of(files, path)) for path in paths)
        self._files, self._paths = files, paths
        self._read: list[InputFile] = []
        self._queries = self._all()

    def __next__(self) -> Any:
        return next(self._queries)

    def files(self) -> list[InputFile]:
        """Return the files that were read, each with the number of its queries."""
        return list(self._read)

    def _all(self) -> Iterator[Any]:
        for path in self._paths:
            name = input_files.name_of(self._files, path)
            version = input_files.version_of(self._files, path) if self.may_stay else ""
            count = 0
            for query in input_files.read(self._files, path):
                count += 1
                yield query
            if count:
                self._read.append(InputFile(name, version, count))


def _of_location(name: str) -> _Files:
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(name if "://" in name else str(Path(name).expanduser()))
        paths = _paths(files, root, name)
        return _Files(files, paths)
    except ImportError as error:
        raise ConfigurationError(f"{name!r} cannot be read: {str(error).partition(chr(10))[0]}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise DataError(f"{name!r} cannot be read: {error}") from error


def _paths(files: Any, root: str, name: str) -> list[str]:
    """Return the files that a name means, in order."""
    if files.isfile(root):
        found = [root]
    elif files.isdir(root):
        found = [path for path in files.find(root) if input_files.is_image(path) and not _hidden(path, root)]
        if not found:
            raise DataError(
                f"the folder {name!r} contains no images; for other files use a pattern, such as '{name.rstrip('/')}/*.txt'"
            )
    elif glob.has_magic(name):
        found = [path for path in files.glob(root) if files.isfile(path)]
        if not found:
            raise DataError(f"no file matches {name!r}")
    else:
        if Path(name).exists():
            raise DataError(f"{name!r} is neither a regular file nor a folder")
        raise DataError(f"there is no file or folder {name!r}")
    for path in found:
        input_files.check(path)
    return sorted(found)


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path[len(root) :]).parts)


def _plain(query: Any) -> Any:
    """Return a Python query as values that can be sent.

    Raises
    ------
    DataError : its type cannot be sent.
    """
    if isinstance(query, np.ndarray):
        if query.dtype == object:
            raise DataError("an array of objects cannot be a query: only numbers, booleans and texts can")
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
