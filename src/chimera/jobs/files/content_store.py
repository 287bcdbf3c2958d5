"""Content-addressed store of uploaded files, from which the folders of jobs are created."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import FOLDER, make_folder, opener, write
from chimera.jobs.files.paths import MAX_FILES, check_path
from chimera.jobs.store.records import File

_NO_TEXTS: Mapping[str, str] = MappingProxyType({})
_SHA256 = re.compile("[0-9a-f]{64}")


class ContentStore:
    """A folder of files, each named by the SHA-256 of its content. Several processes may use it at the same time.

    Parameters
    ----------
    folder : folder of the files; created with the first file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, file: File) -> bool:
        """Return whether a file is stored completely; if so, renew its time, so that it is kept until its job arrives."""
        stored = self._path(file)
        try:
            whole = stored.stat().st_size == file.size
            if whole:
                os.utime(stored)
        except OSError:
            return False
        return whole

    def missing(self, manifest: Mapping[str, File]) -> list[File]:
        """Return the files of a manifest that must be uploaded, each content once.

        Raises
        ------
        ConfigurationError : a path of the manifest leaves the folder, or the disk has no room for the files.
        """
        check_manifest(manifest)
        missing = list({file.sha256: file for file in manifest.values() if not self.has(file)}.values())
        make_folder(self._folder)
        wanted, free = sum(file.size for file in missing), shutil.disk_usage(self._folder).free
        if wanted > free:
            raise ConfigurationError(
                f"the job's files have {wanted} bytes, and the disk of {self._folder} has {free} left"
            )
        return missing

    def older_than(self, time_s: float) -> set[str]:
        """Return the names of files and unfinished uploads that were last sent or requested before a time (epoch seconds)."""
        found = set()
        for stored in self._folder.glob("*") if self._folder.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                if stored.stat().st_mtime < time_s:
                    found.add(stored.name)
        return found

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; folders of jobs have their own copies."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def add(self, file: File, chunks: Iterable[bytes]) -> None:
        """Store a file from chunks; raises as `receive` does."""
        with self.receive(file) as write:
            for chunk in chunks:
                write(chunk)

    @contextlib.contextmanager
    def receive(self, file: File) -> Iterator[Callable[[bytes], None]]:
        """Yield a function that writes one chunk; the file is stored when the context ends without an error.

        Raises
        ------
        DataError : the content does not match the SHA-256 or the size. Nothing is kept, and no more than the size is read.
        """
        stored = self._path(file)
        make_folder(self._folder)
        draft = self._folder / f".{file.sha256}.{os.getpid()}.{secrets.token_hex(4)}"
        digest, size = hashlib.sha256(), 0
        try:
            with open(draft, "xb", opener=opener) as opened:

                def write(chunk: bytes) -> None:
                    nonlocal size
                    size += len(chunk)
                    if size > file.size:
                        raise DataError(f"the file {file.sha256} is longer than the {file.size} bytes announced")
                    digest.update(chunk)
                    opened.write(chunk)

                yield write
                if size < file.size or digest.hexdigest() != file.sha256:
                    raise DataError(
                        f"the content of the file {file.sha256} is wrong: {size} of {file.size} bytes arrived"
                    )
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(stored)
        finally:
            draft.unlink(missing_ok=True)

    def create_folder(self, manifest: Mapping[str, File], target: Path, texts: Mapping[str, str] = _NO_TEXTS) -> None:
        """Create a folder with the files of a manifest atomically; an existing folder is kept.

        Each file is a copy, which shares blocks if the file system supports it, so that no job changes the files of another.

        Parameters
        ----------
        texts : text of additional files, by their path in the folder.

        Raises
        ------
        ConfigurationError : a path of the manifest leaves the folder.
        DataError : a file is missing, or the folder cannot be created.
        """
        check_manifest([*manifest, *texts])
        if target.exists():
            return
        draft = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
        make_folder(draft.parent)
        draft.mkdir(FOLDER)
        try:
            for path, file in manifest.items():
                if not self.has(file):
                    raise DataError(
                        f"the file {path!r} of the job was not uploaded: its content {file.sha256} is missing"
                    )
                copy = draft / path
                make_folder(copy.parent)
                _copy(self._path(file), copy)
            for path, text in texts.items():
                make_folder((draft / path).parent)
                write(draft / path, text.encode())
            with contextlib.suppress(OSError):  # another process created it meanwhile
                draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if not target.is_dir():
            raise DataError(f"the folder {target} of the job cannot be created")

    def _path(self, file: File) -> Path:
        if not _SHA256.fullmatch(file.sha256):
            raise ConfigurationError(f"{file.sha256!r} is not a SHA-256")
        return self._folder / file.sha256


def hash_file(path: Path) -> File:
    """Return the SHA-256 and the size of a file, without reading it into memory at once.

    Raises
    ------
    ConfigurationError : it cannot be read, or changes meanwhile.
    """
    try:
        with path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            size, end = os.fstat(opened.fileno()).st_size, opened.tell()
    except OSError as error:
        raise ConfigurationError(f"the file {path} cannot be read: {error.strerror or error}") from error
    if size != end:
        raise ConfigurationError(f"the file {path} changes while it is read: submit it when it is complete")
    return File(sha256, size)


def hash_text(text: str) -> File:
    """Return the SHA-256 and the size of a file with this text."""
    body = text.encode()
    return File(hashlib.sha256(body).hexdigest(), len(body))


def verify(manifest: Mapping[str, File], folder: Path) -> str:
    """Return an error in one line that names a file which differs from the manifest; empty if all files match."""
    for path, file in manifest.items():
        stored = folder / path
        try:
            if stored.stat().st_size == file.size and hash_file(stored) == file:
                continue
        except (OSError, ConfigurationError):
            pass
        return f"its file {path!r} is not the one that was submitted"
    return ""


def check_manifest(manifest: Collection[str]) -> None:
    """Check that all paths of a manifest stay below the folder and do not conflict.

    Raises
    ------
    ConfigurationError : a path leaves the folder or conflicts with another; the message names it.
    """
    if len(manifest) > MAX_FILES:
        raise ConfigurationError(f"a job can have at most {MAX_FILES} files, and this one has {len(manifest)}")
    taken = set(manifest)
    if len(taken) < len(manifest):
        raise ConfigurationError("two of the job's files would have the same path")
    for path in manifest:
        check_path(path)
        above = next((str(folder) for folder in PurePosixPath(path).parents if str(folder) in taken), None)
        if above is not None:
            raise ConfigurationError(f"the job's files {above!r} and {path!r} cannot both be there")


def _copy(source: Path, copy: Path) -> None:
    with source.open("rb") as old, open(copy, "xb", opener=opener) as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), 1 << 30):
                pass
        except (AttributeError, OSError):  # not supported by this system, or between these file systems
            old.seek(new.seek(0, os.SEEK_END))
            shutil.copyfileobj(old, new, 1 << 20)
