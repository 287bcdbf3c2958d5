"""The folder of a run and its files (docs/architecture.md, section 9)."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import make_folder
from chimera.core.safe_path import MAX_SETTINGS_BYTES, read_regular, safe_path
from chimera.core.worker_counts import WorkerCounts
from chimera.training.artifacts.changed_settings import changed_settings
from chimera.training.artifacts.folder_lock import FolderLock, is_locked
from chimera.training.artifacts.location import folder_of
from chimera.training.artifacts.result import Run
from chimera.training.artifacts.signature import Signature
from chimera.training.artifacts.stored_run import StoredRun
from chimera.training.progress.callback import Callback
from chimera.training.progress.history import History, write_atomically
from chimera.version import __version__

_LIBRARIES = ("numpy", "scikit-learn", "torch", "pandas", "safetensors", "msgspec")
_RESULTS = (
    "checkpoints",
    "summary.json",
)  # a folder without these may be overwritten: its run failed before it had results

_TOKEN = re.compile(
    r"(\btokens?\b[^=]*=).*", re.DOTALL
)  # in an argument: ``engine.tokens = { "http://host" = "..." }``
_TOKEN_OPTIONS = ("--token", "--tokens")  # of a user's own script; the token is the next argument


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes
    ----------
    path : the folder.
    resumes : whether the run resumes from a checkpoint in it.
    stored : the object store to which the files are uploaded; None if they stay in the folder.
    name : the name of a new folder below ``runs/``, to which a number is appended if it is taken; None for any other folder.
    """

    path: Path
    resumes: bool
    stored: StoredRun | None = None
    name: str | None = None
    _lock: FolderLock = field(default_factory=FolderLock, repr=False, compare=False)

    @property
    def location(self) -> Path | str:
        """The folder, or the URL of the files in an object store."""
        return self.path if self.stored is None else self.stored.location

    @classmethod
    def choose(cls, out: str | Path | None, name: str, *, resume: bool) -> RunFolder:
        """Return the folder ``out``, by default ``runs/<name>``, with a number if an earlier run has that name.

        With ``resume``, return the folder of the newest run of that name. ``out`` may be the URL of an object store.

        Raises
        ------
        ConfigurationError : ``out`` contains a run, and ``resume`` is not set; it is no path, or a URL that cannot be
            used; or ``resume`` is neither True nor False.
        StoreError : the object store cannot be read.
        """
        if resume not in (True, False):
            raise ConfigurationError(
                f"resume must be True or False, not {resume!r}: give the folder of the run as out, such as "
                f"out={str(resume)!r}, resume=True"
            )
        if not isinstance(out, str | os.PathLike | None):
            raise ConfigurationError(f"out must be the path of a folder or a URL, not {out!r}")
        if out is not None:
            path = folder_of(out)
            if path is None:
                stored = StoredRun(str(out), resumes=resume)
                return cls(stored.folder, resume, stored)
            if not resume and _holds_run(path):
                raise ConfigurationError(f"{path} already contains a run: resume it, or choose another folder")
            return cls(path, resume)
        first = Path("runs") / (re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run")
        if resume:
            return cls((_taken(first) or [first])[-1], True)
        return cls(_next(first), False, name=first.name)

    def free(self) -> RunFolder:
        """Return this folder, or one with the next number if its name is ours and a run has begun in it meanwhile."""
        return self if self.name is None or not _holds_run(self.path) else replace(self, path=_next(self._first))

    @property
    def _first(self) -> Path:
        return self.path.with_name(self.name or self.path.name)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Return a context around the whole run. Files in an object store are on this machine meanwhile."""
        with nullcontext() if self.stored is None else self.stored.opened():
            try:
                yield
            finally:
                self._lock.release()

    def changes(self, experiment: str) -> str:
        """Return the changes of the settings since the run in this folder began; see `changed_settings`."""
        if not self.resumes:
            return ""
        try:
            before = read_regular(safe_path(self.path, "experiment.toml"), MAX_SETTINGS_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            return ""  # there is no run yet
        return changed_settings(before, experiment)

    def begin(self, experiment: str, seed: int, signature: Signature | None) -> RunFolder:
        """Create the folder, and write experiment, model signature and environment. No other run can begin in it meanwhile.

        Return this folder, or the one with the next number, see `free`.

        Raises
        ------
        ConfigurationError : another run has left results in the folder since it was chosen.
        RunError : the folder cannot be created or written, or another run writes to it.
        """
        folder = self.free()
        while not folder._locked():
            folder = folder.free()
        folder._describe(experiment, seed, signature)
        return folder

    def _locked(self) -> bool:
        """Create and lock the folder; return False if it is taken, and another number can be chosen."""
        try:
            make_folder(self.path)
        except OSError as error:
            raise RunError(f"the folder {self.path} cannot be created: {error.strerror}") from error
        if self.name is None:
            self._lock.acquire(self.path)
        elif not self._lock.try_acquire(self.path):
            return False
        if self.resumes or not _has_results(self.path):
            return True
        self._lock.release()
        if self.name is None:
            raise ConfigurationError(f"{self.path} already contains a run: resume it, or choose another folder")
        return False

    def _describe(self, experiment: str, seed: int, signature: Signature | None) -> None:
        write_atomically(self.path / "experiment.toml", experiment.encode())
        if signature is not None:
            signature.write(self.path)
        environment = {
            "chimera": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "seed": seed,
            "command": _command(sys.argv),
            "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
        }
        write_atomically(self.path / "environment.json", msgspec.json.format(msgspec.json.encode(environment)))
        if self.stored is not None:
            self.stored.begin()

    def recorded(self, history: History, callbacks: Sequence[Callback]) -> list[Callback]:
        """Return callbacks that the run needs while it records in ``history``."""
        return [] if self.stored is None else [self.stored.recorded(history, callbacks)]

    def describe_data(self, counts: WorkerCounts | Mapping[str, Any] | None) -> None:
        """Write the counts of each worker's data, or the schema of the nodes, to ``data.json``.

        If ``counts`` is None, remove the file of an earlier, failed run.

        Raises
        ------
        RunError : the file cannot be written.
        """
        path = self.path / "data.json"
        if counts is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, msgspec.json.encode(counts) + b"\n")

    def finish(self, run: Run) -> None:
        """Write weights, summary and report; upload all files, if they belong in an object store.

        Raises
        ------
        RunError : a file cannot be written or uploaded.
        """
        from chimera.report.html import write_report

        run.save(self.path / "weights.safetensors")
        write_atomically(self.path / "summary.json", msgspec.json.format(msgspec.json.encode(run.summary())))
        write_report(self.path)
        if self.stored is not None:
            self.stored.finish()


def _has_results(path: Path) -> bool:
    return any((path / name).exists() for name in _RESULTS)


def _holds_run(path: Path) -> bool:
    return _has_results(path) or is_locked(path)


def _taken(first: Path) -> list[Path]:
    """Return the folders of runs with the name ``first``, in the order of their numbers."""
    numbered = [first, *sorted(first.parent.glob(f"{first.name}-*"), key=_number)]
    return [path for path in numbered if _holds_run(path) and (path == first or _number(path) > 0)]


def _next(first: Path) -> Path:
    """Return ``first``, or its name with the number after those of the runs there."""
    taken = _taken(first)
    return first.with_name(f"{first.name}-{max(_number(taken[-1]), 1) + 1}") if taken else first


def _command(arguments: Sequence[str]) -> str:
    """Return a command as one line, without the tokens in it."""
    pairs = itertools.pairwise(("", *arguments))
    shown = ("..." if before in _TOKEN_OPTIONS else _TOKEN.sub(r"\1...", argument) for before, argument in pairs)
    return " ".join(shown)


def _number(path: Path) -> int:
    suffix = path.name.rpartition("-")[2]
    return int(suffix) if suffix.isdecimal() else 0


@cache  # reading the metadata of six libraries takes 3 ms
def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
