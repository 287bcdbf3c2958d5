"""A run's folder on its way: packed while it may still grow, and unpacked where somebody wants it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from chimera.core.errors import ConfigurationError, RunError

_PART = 1 << 20


def packed(folder: Path, more: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a tar archive of the files of a folder, and of ``more`` by their names in it.

    A file that goes meanwhile is left out; one that grows is cut off where it stood, a file of lines after a whole one.
    """
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name, path in {**files, **more}.items():
        if name.endswith(".part"):
            continue  # it is being written
        try:
            with path.open("rb") as file:
                yield from _member(name, file)
        except FileNotFoundError:
            continue
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, file: IO[bytes]) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = _size(file, by_lines=name.endswith(".jsonl"))
    yield info.tobuf(tarfile.PAX_FORMAT)
    left = info.size
    while left:
        part = file.read(min(left, _PART)) or bytes(min(left, _PART))  # a file that was cut shorter is filled up
        left -= len(part)
        yield part
    yield bytes(-info.size % tarfile.BLOCKSIZE)


def _size(file: IO[bytes], *, by_lines: bool) -> int:
    size = file.seek(0, io.SEEK_END)
    if by_lines and size:
        first = max(0, size - _PART)
        file.seek(first)
        size = first + file.read().rfind(b"\n") + 1
    file.seek(0)
    return size


def unpack(archive: IO[bytes], folder: Path) -> list[str]:
    """Unpack an archive as it comes, and return the names of its files; what is there is written over.

    Raises
    ------
    ConfigurationError : the folder cannot be written.
    RunError : the archive breaks off, or holds what must not be in it.
    """
    names = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for member in tar:
                tar.extract(member, folder, filter="data")  # no links or paths that lead out of it
                names.append(member.name)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror or error}") from error
    except tarfile.TarError as error:
        raise RunError(f"the files did not arrive whole: {error}") from error
    return names
