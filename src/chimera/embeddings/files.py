"""Files of word vectors: CSV without words, word2vec's text and binary formats, HDF5 and safetensors.

The ending of a file sets its format. Files are untrusted: every size that a file states is compared with the size of the file,
and no code in a file is run.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core import private
from chimera.core.errors import ConfigurationError, DataError, MissingExtraError
from chimera.training.artifacts.tensor_file import read_tensors

if TYPE_CHECKING:
    from chimera.embeddings.word_vectors import WordVectors

Content: TypeAlias = tuple[Sequence[str], NDArray[np.float32]]
_DIGITS = "%.9g"  # enough digits to read back every float32 exactly
_BLANK = b" \t\n\r\v\f"
_MAX_LINE_BYTES = 1 << 24
_SMALL_CHUNK_BYTES = 1 << 24  # h5py's own chunks are smaller


class _Format(NamedTuple):
    write: Callable[[WordVectors, Path], None]
    read: Callable[[Path], Content]


def save(vectors: WordVectors, path: Path) -> None:
    """Write a file atomically.

    Raises
    ------
    ConfigurationError : the ending is unknown, the file cannot be written, or the format cannot hold a word.
    """
    write = _format(path).write
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        private.write(temporary, b"")  # libraries that write the formats keep the mode of an existing file
        write(vectors, temporary)
        temporary.replace(path)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, words: Sequence[str] | None) -> Content:
    """Return words and vectors; see `chimera.embeddings.WordVectors.load`."""
    found = _format(path)
    try:
        inside, vectors = found.read(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if inside and words is not None and tuple(inside) != tuple(words):
        raise DataError(f"the words in {path} differ from the given ones")
    if not inside and words is None:
        raise DataError(f"{path} has vectors without words: give the vocabulary, in the same order")
    return inside or list(words or ()), vectors


def _format(path: Path) -> _Format:
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"{path}: a file of word vectors ends in {', '.join(sorted(FORMATS))}")
    return FORMATS[path.suffix]


def _encoded(vectors: WordVectors) -> list[bytes]:
    """Return the words in UTF-8, for formats that separate words by white space."""
    encoded = []
    for word in vectors.words:
        try:
            raw = word.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"the word {word!r} cannot be written in UTF-8") from error
        if not raw or any(byte in _BLANK for byte in raw):
            raise ConfigurationError(f"the word {word!r} is empty or has white space, which separates words in a file")
        encoded.append(raw)
    return encoded


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: the word {raw[:40]!r} is not in UTF-8") from error


def _write_numbers(vectors: WordVectors, path: Path) -> None:
    with path.open("w") as file:
        np.savetxt(file, vectors.vectors, fmt=_DIGITS)


def _read_numbers(path: Path) -> Content:
    rows: list[NDArray[np.float32]] = []
    with path.open("rb") as file:
        number = 0
        while line := _line(file, path, number := number + 1):
            row = _numbers(line.split(), f"{path}, line {number}")
            if rows and row.size != rows[0].size:
                raise DataError(f"{path}, line {number}: it has {row.size} numbers, the lines before {rows[0].size}")
            rows.append(row)
    if not rows:
        raise DataError(f"{path} is empty: expected lines of numbers")
    return (), np.array(rows)


def _line(file: Any, path: Path, number: int) -> bytes:
    line: bytes = file.readline(_MAX_LINE_BYTES)
    if len(line) == _MAX_LINE_BYTES:
        raise DataError(f"{path}, line {number}: the line is longer than {_MAX_LINE_BYTES} bytes")
    return line


def _numbers(fields: Sequence[bytes], where: str) -> NDArray[np.float32]:
    if not fields:
        raise DataError(f"{where}: there are no numbers")
    try:
        with np.errstate(over="ignore"):
            row = np.array([float(field) for field in fields]).astype(np.float32)
    except ValueError as error:
        raise DataError(f"{where}: {str(error).partition(': ')[2]} is not a number") from error
    if not np.isfinite(row).all():
        raise DataError(f"{where}: there is a number that is not finite")
    return row


def _header(file: Any, path: Path, bytes_a_number: int) -> tuple[int, int]:
    """Return the numbers of words and of elements in the first line, checked against the size of the file."""
    fields = _line(file, path, 1).split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 19 for field in fields):
        raise DataError(f"{path}, line 1: expected the number of words and the number of elements")
    words, dim = map(int, fields)
    left = path.stat().st_size - file.tell()
    if words < 1 or dim < 1 or words * dim * bytes_a_number > left:
        raise DataError(f"{path} states {words} words of {dim} elements, which do not fit into {left} bytes")
    return words, dim


def _write_text(vectors: WordVectors, path: Path) -> None:
    words = _encoded(vectors)
    row_format = " ".join([_DIGITS] * vectors.dim)
    with path.open("wb") as file:
        file.write(f"{len(vectors)} {vectors.dim}\n".encode())
        for word, row in zip(words, vectors.vectors, strict=True):
            file.write(word + b" " + (row_format % tuple(row.tolist())).encode() + b"\n")


def _read_text(path: Path) -> Content:
    with path.open("rb") as file:
        count, dim = _header(file, path, 2)
        words, vectors = [], np.empty((count, dim), np.float32)
        for place in range(count):
            where = f"{path}, line {place + 2}"
            fields = _line(file, path, place + 2).split()
            if len(fields) != dim + 1:
                raise DataError(f"{where}: expected a word and {dim} numbers, not {len(fields)} fields")
            words.append(_decoded(fields[0], where))
            vectors[place] = _numbers(fields[1:], where)
        _check_end(file, path)
    return words, vectors


def _check_end(file: Any, path: Path) -> None:
    if file.read(1 << 16).strip():
        raise DataError(f"{path} has data after the number of words that it states")


def _write_binary(vectors: WordVectors, path: Path) -> None:
    words = _encoded(vectors)
    with path.open("wb") as file:
        file.write(f"{len(vectors)} {vectors.dim}\n".encode())
        for word, row in zip(words, vectors.vectors, strict=True):
            file.write(word + b" " + row.astype("<f4").tobytes() + b"\n")


def _read_binary(path: Path) -> Content:
    with path.open("rb") as file:
        count, dim = _header(file, path, 4)
        words, vectors = [], np.empty((count, dim), np.float32)
        content = file.read()
    at = 0
    for place in range(count):
        where = f"{path}, word {place + 1}"
        end = content.find(b" ", at)
        begin, at = at, end + 1 + 4 * dim
        if end < 0 or at > len(content):
            raise DataError(f"{where}: the file ends before its vector does")
        words.append(_decoded(content[begin:end].lstrip(b"\n"), where))  # only some programs end a row with a line feed
        vectors[place] = np.frombuffer(content, "<f4", dim, end + 1)
    if content[at:].strip():
        raise DataError(f"{path} has data after the number of words that it states")
    return words, vectors


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise MissingExtraError("a file of word vectors in HDF5", "h5py", "hdf5") from error


def _write_hdf5(vectors: WordVectors, path: Path) -> None:
    words = np.frombuffer(b"\n".join(_encoded(vectors)), np.uint8)
    with _h5py().File(path, "w") as file:
        file["vectors"], file["words"] = vectors.vectors, words


def _read_hdf5(path: Path) -> Content:
    h5py = _h5py()
    with path.open("rb") as raw:  # a missing file raises the error of the system, not of h5py
        size = os.fstat(raw.fileno()).st_size
    try:
        with h5py.File(path, "r") as file:
            found = {}
            for name in ("words", "vectors"):
                entry = file.get(name, getlink=True)
                part = file[name] if isinstance(entry, h5py.HardLink) else None
                if (
                    not isinstance(part, h5py.Dataset)
                    or part.external
                    or part.is_virtual
                    or part.dtype.kind not in "fu"
                ):
                    raise DataError(f"{path} has no data set {name!r} of numbers of its own")
                if part.nbytes > size or _chunk_bytes(part) > max(size, _SMALL_CHUNK_BYTES):
                    raise DataError(f"{path}: the data set {name!r} states more than the file's {size} bytes hold")
                found[name] = part[()]
    except DataError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError) as error:  # h5py raises any of these for damaged files
        raise DataError(f"{path} is not an HDF5 file: {error}") from error
    return _unpacked(found, path)


def _chunk_bytes(part: Any) -> int:
    """Return the number of bytes that a read of any element allocates."""
    return math.prod(part.chunks or ()) * int(part.dtype.itemsize)


def _unpacked(found: dict[str, Any], path: Path) -> Content:
    words, vectors = found["words"], found["vectors"]
    if words.ndim != 1 or words.dtype != np.uint8 or vectors.ndim != 2 or vectors.dtype != np.float32:
        raise DataError(f"{path}: 'words' must be bytes and 'vectors' a table of float32")
    return [_decoded(raw, str(path)) for raw in words.tobytes().split(b"\n")], vectors


def _write_safetensors(vectors: WordVectors, path: Path) -> None:
    from safetensors.numpy import save_file

    words = np.frombuffer(b"\n".join(_encoded(vectors)), np.uint8)
    save_file({"vectors": vectors.vectors, "words": words}, path)


def _read_safetensors(path: Path) -> Content:
    found = read_tensors(path)
    if set(found) != {"words", "vectors"}:
        raise DataError(f"{path} must have 'words' and 'vectors', and has {', '.join(sorted(found)) or 'nothing'}")
    return _unpacked(found, path)


FORMATS = {
    ".csv": _Format(_write_numbers, _read_numbers),
    ".txt": _Format(_write_text, _read_text),
    ".vec": _Format(_write_text, _read_text),
    ".bin": _Format(_write_binary, _read_binary),
    ".h5": _Format(_write_hdf5, _read_hdf5),
    ".hdf5": _Format(_write_hdf5, _read_hdf5),
    ".safetensors": _Format(_write_safetensors, _read_safetensors),
}
"""Writer and reader of each ending."""
