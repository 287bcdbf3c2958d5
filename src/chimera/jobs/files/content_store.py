"""Files by their content: what was uploaded once is there for every job, and becomes the folder that a job runs in."""

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
from chimera.jobs.files.paths import MOST_FILES, check_path
from chimera.jobs.store.records import File

_NONE: Mapping[str, str] = MappingProxyType({})
_SHA256 = re.compile("[0-9a-f]{64}")


class Contents:
    """A folder of files that are called as the SHA-256 of what is in them; several processes may use it at once.

    Parameters
    ----------
    folder : it is made when the first file comes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, file: File) -> bool:
        """Whether it is there, whole; it counts as sent anew then, so that it is not forgotten before its job comes."""
        place = self._place(file)
        try:
            whole = place.stat().st_size == file.size
            if whole:
                os.utime(place)
        except OSError:
            return False
        return whole

    def missing(self, manifest: Mapping[str, File]) -> list[File]:
        """Return what of a manifest has to be uploaded, each content once.

        Raises
        ------
        ConfigurationError : a path of the manifest leads out of the folder, or the disk has no room for them.
        """
        check(manifest)
        missing = list({file.sha256: file for file in manifest.values() if not self.has(file)}.values())
        make_folder(self._folder)
        wanted, free = sum(file.size for file in missing), shutil.disk_usage(self._folder).free
        if wanted > free:
            raise ConfigurationError(
                f"the job's files have {wanted} bytes, and the disk of {self._folder} has {free} left"
            )
        return missing

    def older(self, than_s: float) -> set[str]:
        """Return the files, and what is left of uploads, that nobody has sent or asked for since."""
        found = set()
        for place in self._folder.glob("*") if self._folder.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                if place.stat().st_mtime < than_s:
                    found.add(place.name)
        return found

    def drop(self, names: Iterable[str]) -> None:
        """Remove files; folders of jobs have their own copies."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def add(self, file: File, chunks: Iterable[bytes]) -> None:
        """Take a file in pieces; raises as `receiving` does."""
        with self.receiving(file) as write:
            for chunk in chunks:
                write(chunk)

    @contextlib.contextmanager
    def receiving(self, file: File) -> Iterator[Callable[[bytes], None]]:
        """Take a file in pieces: yields what takes one; the file is there once the context ends well.

        Raises
        ------
        DataError : what came is not what its name says. Nothing of it is kept, and no more than its size is taken.
        """
        place = self._place(file)
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
                    raise DataError(f"what came for the file {file.sha256} is not that: {size} of {file.size} bytes")
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(place)
        finally:
            draft.unlink(missing_ok=True)

    def unpack(self, manifest: Mapping[str, File], target: Path, texts: Mapping[str, str] = _NONE) -> None:
        """Make a folder of the files of a manifest, whole or not at all; one that is there already stays.

        Each file is a copy, which shares its blocks where the file system can: what a job does to its own reaches no other job.

        Parameters
        ----------
        texts : files to write besides, by their path there.

        Raises
        ------
        ConfigurationError : a path of the manifest leads out of the folder.
        DataError : a file is not there.
        """
        check([*manifest, *texts])
        if target.exists():
            return
        draft = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
        make_folder(draft.parent)
        draft.mkdir(FOLDER)
        try:
            for path, file in manifest.items():
                if not self.has(file):
                    raise DataError(
                        f"the file {path!r} of the job was not uploaded: its content {file.sha256} is not there"
                    )
                copy = draft / path
                make_folder(copy.parent)
                _copy(self._place(file), copy)
            for path, text in texts.items():
                make_folder((draft / path).parent)
                write(draft / path, text.encode())
            with contextlib.suppress(OSError):  # another process has made it meanwhile
                draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if not target.is_dir():
            raise DataError(f"the folder {target} of the job cannot be made")

    def _place(self, file: File) -> Path:
        if not _SHA256.fullmatch(file.sha256):
            raise ConfigurationError(f"{file.sha256!r} is not a SHA-256")
        return self._folder / file.sha256


def described(path: Path) -> File:
    """Return what a file is by its content, read piece by piece.

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


def of_text(text: str) -> File:
    """Return what a file with this text is by its content."""
    body = text.encode()
    return File(hashlib.sha256(body).hexdigest(), len(body))


def verify(manifest: Mapping[str, File], folder: Path) -> str:
    """Return which file of a folder is not as its manifest says, in one line; nothing if all are."""
    for path, file in manifest.items():
        place = folder / path
        try:
            if place.stat().st_size == file.size and described(place) == file:
                continue
        except (OSError, ConfigurationError):
            pass
        return f"its file {path!r} is not the one that was submitted"
    return ""


def check(manifest: Collection[str]) -> None:
    """Refuse paths of a manifest that name a place outside of its folder, or two things at one place.

    Raises
    ------
    ConfigurationError : naming the path.
    """
    if len(manifest) > MOST_FILES:
        raise ConfigurationError(f"a job travels with at most {MOST_FILES} files, and this one has {len(manifest)}")
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
        except (AttributeError, OSError):  # not of this system, or not between these file systems
            old.seek(new.seek(0, os.SEEK_END))
            shutil.copyfileobj(old, new, 1 << 20)
