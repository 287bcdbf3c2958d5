"""Folder of the jobs of a user on Slurm: a folder for each job, as in the folder of a cluster of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from chimera.core.errors import ConfigurationError, ConflictError, DataError
from chimera.core.private import FOLDER, make_folder, write
from chimera.jobs.cluster.folder import JobFolder
from chimera.jobs.files.bundle import EXPERIMENT
from chimera.jobs.files.content_store import ContentStore
from chimera.jobs.slurm.attempts import Attempts, read_attempts
from chimera.jobs.slurm.script import BEGIN, RUN
from chimera.jobs.slurm.updates import RunLimits
from chimera.jobs.store.records import File, Submission
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.history import write_atomically
from chimera.web.folder import try_lock

_MARK = "slurm.json"
_DAEMON_FILES = ("token", "jobs.sqlite")  # files of a cluster with a daemon
_NUMBER = re.compile("[1-9][0-9]{0,17}", re.ASCII)
_ERROR_BYTES = 1 << 16
_ERROR_LENGTH = 500
_PART = 1 << 20

T = TypeVar("T")


class Ended(Struct, frozen=True):
    """Final state of a job, recorded because Slurm lists jobs only until some minutes after their end."""

    state: str
    reason: str
    at_s: float


class Record(Struct, frozen=True, kw_only=True):
    """The state of a job, besides its submission.

    Attributes
    ----------
    slurm : Slurm's number of the job; a retry has another one. It is empty until Slurm has confirmed the submission.
    mark : mark of the last submission.
    earlier : Slurm's number in the last line of the script before the last submission; empty if there was none.
    limits : for its progress.
    submitted_s, since_s : time of the first submission, and of the last one, which may be a retry.
    ended : its final state, once it was observed.
    """

    slurm: str
    limits: RunLimits
    submitted_s: float
    since_s: float
    ended: Ended | None = None
    mark: str = ""
    earlier: str = ""


class SlurmJobFolder(JobFolder):
    """The folder of one job."""

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.path / "job.sh"

    @property
    def cancelled(self) -> Path:
        """File that exists if a user has cancelled the job."""
        return self.path / "cancelled"

    @property
    def attempts(self) -> Attempts:
        """The lines that the script has written about its attempts."""
        return read_attempts(self.path / "attempts")

    def submission(self) -> Submission:
        """Return the submission; raises as `record` does."""
        return self._read("submission.json", Submission)

    def record(self) -> Record:
        """Return the record.

        Raises
        ------
        DataError : the file is damaged.
        """
        return self._read("record.json", Record)

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(
                f"job {self.path.name}: {path} is damaged or cannot be read ({error}), so the state of the job is not "
                f"known: 'squeue --me' shows whether Slurm runs it, and the files of its run are in {self.run}"
            ) from error

    def write_record(self, record: Record) -> None:
        """Write the record atomically. Another command may write it at the same time, also on another machine."""
        draft = self.path / f"record.{secrets.token_hex(8)}"
        write_atomically(draft, msgspec.json.encode(record))
        draft.replace(self.path / "record.json")

    def write_submission(self, submission: Submission) -> None:
        """Write the submission."""
        write(self.path / "submission.json", msgspec.json.encode(submission))

    def allow_again(self) -> None:
        """Remove the files that keep the script from running the job again."""
        for name in ("cancelled", "stalled"):
            (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock of the job, so that two commands do not cancel it or submit it again at the same time.

        Raises
        ------
        ConflictError : another command holds the lock.
        """
        try:
            lock = try_lock(self.path / "lock")
        except OSError:  # the file system has no locks, such as Lustre without the mount option `flock`
            lock = -1
        if lock is None:
            raise ConflictError(f"job {self.path.name}: another command submits, cancels or retries it now")
        try:
            yield
        finally:
            if lock >= 0:
                os.close(lock)

    def last_error(self, log: Path | None = None) -> str:
        """Return the last error of the last attempt in the log, as one line; empty if there is none."""
        with contextlib.suppress(OSError), (log or self.log).open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _ERROR_BYTES))
            for line in reversed(opened.read().decode("utf-8", "replace").splitlines()):
                if line.startswith(BEGIN):
                    break
                if line.startswith("error: "):
                    shown = "".join(letter if letter.isprintable() else " " for letter in line)
                    return shown.removeprefix("error: ")[:_ERROR_LENGTH]
        return ""


class SlurmFolder:
    """The folder of a user's jobs on Slurm, which all nodes of the Slurm cluster must see under the same path.

    Parameters
    ----------
    path : the folder; `create` creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def exists(self) -> bool:
        """Whether this is such a folder."""
        return (self.path / _MARK).is_file()

    def create(self) -> None:
        """Create the folder; an existing one is kept.

        Raises
        ------
        ConfigurationError : it belongs to a cluster of this machine, or cannot be written.
        """
        if self.exists:
            return
        if any((self.path / name).exists() for name in _DAEMON_FILES):
            raise ConfigurationError(
                f"{self.path} is the folder of a cluster with its own workers: give the jobs on Slurm another one, such as "
                "--folder runs/slurm"
            )
        try:
            make_folder(self.path)
            write(self.path / _MARK, b'{"format": 1}\n')
        except OSError as error:
            raise ConfigurationError(f"the folder {self.path} cannot be written: {error.strerror}") from error

    def jobs(self) -> list[str]:
        """Return the numbers of all submitted jobs, oldest first."""
        found = [entry.parent.name for entry in self.path.glob("jobs/*/record.json")]
        return sorted((name for name in found if _NUMBER.fullmatch(name)), key=int)

    def job(self, job: str) -> SlurmJobFolder:
        """Return the folder of a submitted job.

        Raises
        ------
        ConfigurationError : there is no job with that number.
        """
        folder = SlurmJobFolder(self.path / "jobs" / job)
        if not _NUMBER.fullmatch(job) or not (folder.path / "record.json").is_file():
            raise ConfigurationError(f"there is no job {job!a} in {self.path}")
        return folder

    def new_job(self) -> SlurmJobFolder:
        """Create the folder of a new job, with the next number."""
        jobs = self.path / "jobs"
        make_folder(jobs)
        number = max((int(entry.name) for entry in jobs.iterdir() if _NUMBER.fullmatch(entry.name)), default=0)
        while True:
            number += 1
            with contextlib.suppress(FileExistsError):  # another process took the number
                (jobs / str(number)).mkdir(FOLDER)
                return SlurmJobFolder(jobs / str(number))


def copy_files(store: Path, manifest: Mapping[str, File], sources: Mapping[str, Path], text: str, code: Path) -> None:
    """Copy the files of an experiment into the folder of a job.

    Parameters
    ----------
    store : folder in which the files of all jobs are stored by their content.
    manifest, sources : file and present path by path in the folder.
    text : text of the experiment file.
    code : the folder.
    """
    content = ContentStore(store)
    paths = {file.sha256: sources[path] for path, file in manifest.items()}
    for file in content.missing(manifest):
        with paths[file.sha256].open("rb") as opened:
            content.add(file, iter(partial(opened.read, _PART), b""))
    content.create_folder(manifest, code, {EXPERIMENT: text})


def resolved(code: Path, settings: Sequence[str]) -> Experiment:
    """Return the experiment in a folder with settings, whose relative paths start at that folder."""
    with contextlib.chdir(code):
        return Experiment.load(EXPERIMENT).with_settings(settings)


def write_experiment(home: Path, experiment: Experiment) -> None:
    """Write the experiment that the script runs."""
    write(home / RUN, experiment.to_toml().encode())
