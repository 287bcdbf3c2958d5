"""The coordinator's side of fetching models: the files of folders that jobs name, in pieces, with their hashes."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import TypeAlias

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.core.safe_path import safe_path
from chimera.inference.coordinator.coordinator import Coordinator
from chimera.inference.remote_workers.models import folders_of
from chimera.inference.remote_workers.protocol import FILE_NAME, FILE_PIECE_BYTES, MAX_FILES, SharedFile

_NAME = re.compile(FILE_NAME)
_MAX_LISTS = 100
_Stamp: TypeAlias = tuple[tuple[str, int, int], ...]  # names, sizes and times of the files


class SharedModels:
    """The folders of models that machines may fetch. The hashes of their files are computed once, in a thread."""

    def __init__(self) -> None:
        self._lists: dict[tuple[Path, _Stamp], list[SharedFile] | str | None] = {}
        self._lock = threading.Lock()

    def files(self, folder: Path) -> list[SharedFile] | None:
        """Return the files of a folder; None until their hashes are computed.

        Raises
        ------
        ConfigurationError : the folder cannot be read, has too many files, or a link leads out of it.
        """
        key = folder, _stamp(folder)
        with self._lock:
            if key not in self._lists:
                while len(self._lists) >= _MAX_LISTS:
                    del self._lists[next(iter(self._lists))]
                self._lists[key] = None
                threading.Thread(target=self._compute, args=(*key,), name="chimera-hash", daemon=True).start()
            found = self._lists[key]
        if isinstance(found, str):
            with self._lock:
                self._lists.pop(key, None)
            raise ConfigurationError(found)
        return found

    def _compute(self, folder: Path, stamp: _Stamp) -> None:
        try:
            found: list[SharedFile] | str = [_hashed(folder, name, size) for name, size, _ in stamp]
        except (OSError, ChimeraError) as error:
            found = f"the folder {str(folder)!r} cannot be read: {error}"
        with self._lock:
            self._lists[folder, stamp] = found


def read_piece(folder: Path, name: str, at: int) -> bytes:
    """Return the bytes of a file from a position on, at most `FILE_PIECE_BYTES`.

    Raises
    ------
    ConfigurationError : the file cannot be read, is not one that is sent, or is a link out of its folder.
    """
    if not _NAME.search(name):
        raise ConfigurationError(f"the file {name[:80]!r} is not sent: only .safetensors, .json, .jinja and .txt are")
    try:
        with safe_path(folder, name).open("rb") as file:
            file.seek(at)
            return file.read(FILE_PIECE_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{str(folder / name)!r} cannot be read: {error}") from error


def check_is_needed(leader: Coordinator, worker: str, path: str) -> None:
    """Raise ConfigurationError unless a batch of the worker needs a model in a folder. Main thread of the coordinator only.

    An unfinished batch counts also if it was taken back from the worker, because the network was down.
    """
    jobs = leader.scheduler.jobs.values()
    tables = [job.model for job in jobs if any(worker in workers for workers in job.given.values())]
    if not any(path == folder for table in tables for _, folder in folders_of(table)):
        raise ConfigurationError(f"no batch of {worker} needs a model in {path[:200]!r}")


def _stamp(folder: Path) -> _Stamp:
    try:
        files = sorted(each for each in folder.iterdir() if _NAME.search(each.name) and each.is_file())
        found = [(each.name, each.stat()) for each in files]
    except OSError as error:
        raise ConfigurationError(f"the folder {str(folder)!r} cannot be read: {error}") from error
    if len(found) > MAX_FILES:
        raise ConfigurationError(f"the folder {str(folder)!r} has {len(found)} files, and at most {MAX_FILES} are sent")
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def _hashed(folder: Path, name: str, size: int) -> SharedFile:
    with safe_path(folder, name).open("rb") as file:
        return SharedFile(name, size, hashlib.file_digest(file, "sha256").hexdigest())
