"""Readers of the queries in one file, by its ending. Files are read in pieces, from any file system of fsspec."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from chimera.core.errors import DataError, UnavailableError
from chimera.data.readers.npy import read_header
from chimera.inference.csv_rows import csv_rows
from chimera.inference.journal.records import InputFile

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
MAX_LINE_BYTES = 16 << 20
MAX_ROW_BYTES = 64 << 20  # of an array
_PIECE_BYTES = 4 << 20
_LOCATIONS = ("/", "http://", "https://", "s3://", "gs://")
_END = object()
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # errors that pass


def is_image(path: str) -> bool:
    """Return whether a file is an image, by its ending."""
    return path.lower().endswith(IMAGES)


def check(path: str) -> None:
    """Raise DataError if the ending of the file is unknown."""
    if not is_image(path) and _reader_of(path) is None:
        known = ", ".join((*_READERS, *IMAGES))
        raise DataError(f"the ending of the file {path!r} is unknown; known endings: {known}")


def total_bytes(files: Any, paths: Sequence[str]) -> int | None:
    """Return the size of files, of which an image counts as its name; None if it is unknown."""
    sizes = [len(path) if is_image(path) else None if path.endswith(".gz") else files.size(path) for path in paths]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def version_of(files: Any, path: str) -> str:
    """Return a text that differs once the file has changed: its size, and time of change or tag."""
    found = files.info(path)
    changed = next((found[key] for key in ("mtime", "ETag", "etag", "LastModified", "updated") if found.get(key)), "")
    return f"{found.get('size')}-{changed}"


def is_reference(path: str) -> bool:
    """Return whether queries may stay in a file: it is no image, and its name is an absolute path or an address."""
    known = not is_image(path) and _reader_of(path) is not None
    return known and path.startswith(_LOCATIONS) and "::" not in path  # "::" would name a file system within another


def read_unchanged(file: InputFile) -> Iterator[Any]:
    """Yield the queries in a file; raise as `check_unchanged` and `read` do.

    A local file that is deleted or replaced meanwhile is read to its end. A file that is written to is an error.

    Raises
    ------
    UnavailableError : the file cannot be read now, because too many files are open, or too little memory is free.
    """
    try:
        yield from _unchanged(file)
    except DataError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _SHORT_OF:
            raise UnavailableError(str(error)) from error
        raise
    except Exception as error:  # for instance of an import, or of the client of an object store
        raise UnavailableError(f"{file.path} cannot be read now: {str(error) or type(error).__name__}") from error


def _unchanged(file: InputFile) -> Iterator[Any]:
    files, path = check_unchanged(file)
    with _watched(path if "file" in _protocols(files) else None) as state:
        before = state()
        for query in itertools.chain(itertools.islice(read(files, path), file.queries), [_END]):
            if state() != before:
                raise _changed(file)
            if query is not _END:
                yield query


@contextlib.contextmanager
def _watched(path: str | None) -> Iterator[Callable[[], object]]:
    """Return a function whose result changes with the content of a file, also if another file gets its name."""
    if path is None:
        yield lambda: None
        return
    try:
        watched = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield lambda: ((now := os.fstat(watched)).st_size, now.st_mtime_ns)
    finally:
        os.close(watched)


def _changed(file: InputFile) -> DataError:
    return DataError(f"{file.path} has changed since the job was submitted")


def check_unchanged(file: InputFile) -> tuple[Any, str]:
    """Return the file system of a file, and its path there.

    Raises
    ------
    DataError : the file cannot be read, is not one whose queries may stay in it, or has changed.
    """
    import fsspec

    if not is_reference(file.path):
        raise DataError(f"{file.path[:200]!r} is no file whose queries may stay in it")
    try:
        files, path = fsspec.core.url_to_fs(file.path)
        now = version_of(files, path)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"{file.path} cannot be read: {error}") from error
    if now != file.version:
        raise _changed(file)
    return files, path


def read(files: Any, path: str) -> Iterator[Any]:
    """Yield the queries in a file.

    Parameters
    ----------
    files : the file system.

    Raises
    ------
    DataError : the file cannot be read; with the number of the line if it has lines.
    """
    whole = name_of(files, path)
    if is_image(path):
        yield whole
        return
    reader = _reader_of(path)
    assert reader is not None  # `check` was called
    try:
        with files.open(path, "rb", compression="gzip" if path.lower().endswith(".gz") else None) as file:
            yield from reader(file, whole)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{whole} cannot be read: {error}") from error


def name_of(files: Any, path: str) -> str:
    """Return the absolute path of a local file, or the URL of another one."""
    return path if "file" in _protocols(files) else str(files.unstrip_protocol(path))


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _reader_of(path: str) -> Callable[[Any, str], Iterator[Any]] | None:
    name = path.lower().removesuffix(".gz")
    return next((reader for ending, reader in _READERS.items() if name.endswith(ending)), None)


def _lines(file: Any, name: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers of the lines, from 1, and the lines without their ends."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{name}, line {number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB")
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number}: not UTF-8 text: {error}") from error


def _texts(file: Any, name: str) -> Iterator[str]:
    """Yield each line, empty ones too, so that the index of a result is the number of its line."""
    for _, line in _lines(file, name):
        yield line


def _values(file: Any, name: str) -> Iterator[Any]:
    """Yield the JSON value of each line that is not blank."""
    for number, line in _lines(file, name):
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise DataError(f"{name}, line {number}: not JSON: {error}") from error


def _rows(file: Any, name: str) -> Iterator[Any]:
    """Yield each row of a table."""
    return csv_rows((line for _, line in _lines(file, name)), name)


def _array_rows(file: Any, name: str) -> Iterator[Any]:
    """Yield each row of the array: an array, or a number if it has one axis."""
    try:
        shape, fortran_order, dtype = read_header(file)
    except ValueError as error:
        raise DataError(f"{name} cannot be read as .npy: {error}") from error
    if dtype.names is not None:
        raise DataError(f"{name} contains {dtype}: only arrays of numbers, booleans or texts are read")
    if not shape:
        raise DataError(f"{name} contains an array without axes, which has no rows")
    if fortran_order and len(shape) > 1:
        raise DataError(f"{name} is stored in column-major order: save np.ascontiguousarray(array)")
    each = math.prod(shape[1:]) * dtype.itemsize
    if not each:
        raise DataError(f"{name} contains rows without elements: its shape is {shape}")
    if each > MAX_ROW_BYTES:
        raise DataError(f"{name} has rows of {each} bytes; at most {MAX_ROW_BYTES >> 20} MiB are read")
    at_once = max(_PIECE_BYTES // each, 1)
    for first in range(0, shape[0], at_once):
        count = min(at_once, shape[0] - first)
        data = file.read(count * each)
        if len(data) != count * each:
            raise DataError(f"{name} is truncated: it has fewer rows than the {shape[0]} of its header")
        piece = np.frombuffer(data, dtype).reshape(count, *shape[1:])
        yield from piece.tolist() if piece.ndim == 1 else (row.copy() for row in piece)


_READERS: dict[str, Callable[[Any, str], Iterator[Any]]] = {
    ".txt": _texts,
    ".jsonl": _values,
    ".ndjson": _values,
    ".csv": _rows,
    ".tsv": _rows,
    ".npy": _array_rows,
}
