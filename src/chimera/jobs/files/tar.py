"""Tar archives of run folders: packed while the run may still write, unpacked by a client that does not trust the cluster.

`tarfile` parses header blocks only. Its ``extract`` is not used, since the members that it refuses depend on the Python
release.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from chimera.core.errors import ConfigurationError, RunError
from chimera.jobs.files.destination import Destination
from chimera.jobs.files.paths import MAX_FILES, check_path

MAX_BYTES = 64 << 30
"""Default limit of the bytes of all files of a run."""
_PART = 1 << 20
_MAX_HEADER_BYTES = 8 << 10  # of an extended header, which is read into memory


def pack(folder: Path, extra: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield the parts of a tar archive of a folder.

    Files that disappear meanwhile are left out. Files that grow are cut at their size when they are opened; ``.jsonl`` files
    are cut after a complete line.

    Parameters
    ----------
    more : additional files by their names in the archive.
    """
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    for name, path in {**files, **extra}.items():
        if name.endswith(".part"):
            continue  # not complete yet
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
        part = file.read(min(left, _PART)) or bytes(min(left, _PART))  # a file that became shorter is padded
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


def unpack(archive: IO[bytes], folder: Path, max_bytes: int = MAX_BYTES) -> list[str]:
    """Unpack an archive while it is received, and return the names of its files. Files of an earlier fetch are replaced.

    Parameters
    ----------
    folder : target folder, created if it does not exist; it must be empty or written by an earlier call.
    max_bytes : limit of the bytes of all files.

    Raises
    ------
    ConfigurationError : the folder cannot be written, holds other files, or has no room.
    RunError : the archive is incomplete, too large, or has members that are not allowed.
    """
    names: set[str] = set()
    with Destination(folder, MAX_FILES) as destination:
        left = max_bytes
        for info in _members(archive):
            try:
                check_path(info.name)
            except ConfigurationError as error:
                raise RunError(f"the files from the cluster are refused: {error}") from error
            if info.isdir():
                destination.make_folder(info.name)
                continue
            if info.name in names:
                raise RunError(f"the files from the cluster are refused: {info.name!r} occurs twice")
            if info.size > left:
                raise RunError(
                    f"the files from the cluster have more than {max_bytes} bytes; if you expect that, raise the limit "
                    "('chimera fetch --max-gib', or 'max_bytes' of 'fetch')"
                )
            if info.size > (free := shutil.disk_usage(folder).free):
                raise ConfigurationError(
                    f"{info.name!r} has {info.size} bytes, and the disk of {folder} has {free} left"
                )
            left -= info.size
            names.add(info.name)
            destination.write(info.name, _content(archive, info.size))
    return list(names)


def _members(archive: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the files and folders of an archive. Read the content of each member before you request the next one."""
    extended: dict[str, str] = {}
    while any(block := _exactly(archive, tarfile.BLOCKSIZE)):
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise RunError(f"the files did not arrive completely: a header cannot be read: {error}") from error
        if info.type == tarfile.XHDTYPE:
            if extended or not 0 <= info.size <= _MAX_HEADER_BYTES:
                raise RunError("the files from the cluster are refused: a header is too long")
            extended = _records(b"".join(_content(archive, info.size)))
            continue
        info.name, size = extended.get("path", info.name), extended.get("size", "")
        info.size = int(size) if size.isascii() and size.isdigit() and len(size) < 20 else info.size
        extended = {}
        if not (info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) and info.size >= 0):
            raise RunError(f"the files from the cluster are refused: {info.name!a} is neither a file nor a folder")
        if info.isdir() and info.size:
            raise RunError(f"the files from the cluster are refused: {info.name!a} is a folder with content")
        yield info


def _records(header: bytes) -> dict[str, str]:
    r"""Return the records of an extended header of POSIX.1-2001: ``<length> <key>=<value>\n``, one after another."""
    found = {}
    try:
        while header:
            digits, _ = header[:20].split(b" ", 1)
            record, header = header[len(digits) + 1 : int(digits)], header[int(digits) :]
            key, value = record.decode().split("=", 1)
            if int(digits) <= len(digits) or not value.endswith("\n") or key.startswith("GNU.sparse"):
                raise ValueError(key)
            found[key] = value[:-1]
    except ValueError as error:
        raise RunError("the files from the cluster are refused: a header has records that cannot be read") from error
    return found


def _content(archive: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the next ``size`` bytes, and skip the padding of their last block."""
    left = size
    while left:
        part = _read(archive, min(left, _PART))
        left -= len(part)
        yield part
    _exactly(archive, -size % tarfile.BLOCKSIZE)


def _exactly(archive: IO[bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += _read(archive, size - len(found))
    return found


def _read(archive: IO[bytes], most: int) -> bytes:
    try:
        part = archive.read(most)
    except OSError as error:
        raise RunError(f"the files did not arrive completely: {error}") from error
    if not part:
        raise RunError("the files did not arrive completely: the archive is truncated")
    return part
