"""Folder of a cluster for jobs: its store, its uploaded files, and a folder for each job."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from chimera.core.address import host_in_url
from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder, opener
from chimera.web.folder import Folder, lock_holder, try_lock

DEFAULT = Path("runs/cluster")


class Options(Struct, frozen=True):
    """Options of a cluster.

    Attributes
    ----------
    workers : number of workers.
    host, port : address of the daemon; port 0 is any free port.
    limit_per_user : limit of workers that the jobs of one user occupy at a time; None is no limit.
    keep_days : days after its end until a job is deleted with its run; None is never.
    page : whether the daemon serves the web page.
    ray : address of the Ray cluster that runs the jobs; empty if this machine runs them.
    pid : process of the supervisor.
    """

    workers: int = 2
    host: str = "127.0.0.1"
    port: int = 0
    limit_per_user: int | None = None
    keep_days: float | None = None
    page: bool = False
    ray: str = ""
    pid: int = 0

    @property
    def address(self) -> str:
        """URL of the daemon."""
        return f"http://{host_in_url(self.host)}:{self.port}"


class Outcome(Struct, frozen=True):
    """Outcome that the driver of an attempt recorded.

    After ``broke`` the next attempt resumes from the checkpoint; ``refused`` means that Ray had no room.
    """

    state: Literal["done", "failed", "broke", "refused"]
    reason: str = ""


class ClusterFolder(Folder):
    """The folder of a cluster.

    Parameters
    ----------
    path : the folder; `create` creates it.
    """

    def __init__(self, path: Path = DEFAULT) -> None:
        at = "" if path.absolute() == DEFAULT.absolute() else f" --folder {shlex.quote(str(path))}"
        self.up = f"chimera cluster up{at}"
        self.down = f"chimera cluster down{at}"
        super().__init__(path, up=self.up, down=self.down)

    @property
    def store(self) -> Path:
        """SQLite file of the store."""
        return self.path / "jobs.sqlite"

    def check_store(self) -> None:
        """Check that the store was not lost: a new one would give the numbers, and so the runs, of the old jobs to new jobs.

        Without jobs in the folder, an empty file is a store whose creation was interrupted.

        Raises
        ------
        ConfigurationError : the store is missing or empty, and the folder has files of jobs.
        """
        exists = self.store.is_file()
        if exists and self.store.stat().st_size:
            return
        if any(any((self.path / name).glob("*")) for name in ("jobs", "files")):
            state = "is empty, so it is damaged" if exists else "is missing, and the folder has files of jobs"
            raise ConfigurationError(
                f"the store of jobs {self.store} {state}: put back a copy of it, or move {self.path} away to begin without "
                "its jobs"
            )

    @property
    def files(self) -> Path:
        """Folder of the content store of uploaded files."""
        return self.path / "files"

    @property
    def log(self) -> Path:
        """Log file of the cluster's own processes."""
        return self.path / "cluster.log"

    @property
    def worker_socket(self) -> Path:
        """Unix socket of the daemon for workers; bind and connect by its name within the folder, since such paths are short."""
        return self.path / "slots.sock"

    def job(self, job: str) -> JobFolder:
        """Return the folder of a job."""
        return JobFolder(self.path / "jobs" / job)

    def write_options(self, options: Options) -> None:
        """Write the options of the running cluster."""
        _write(self.path / "options.json", msgspec.json.encode(options))

    def address(self) -> str | None:
        """Return the URL of the daemon; None if the cluster is not up."""
        options = self.options()
        return options.address if options is not None and options.pid == self.lock_holder() else None

    def options(self) -> Options | None:
        """Return the options of the running cluster, or of the last one; None if there are none."""
        try:
            return msgspec.json.decode((self.path / "options.json").read_bytes(), type=Options)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job: its code, its run, its log, and the lock of its driver."""

    path: Path

    @property
    def code(self) -> Path:
        """Folder of the submitted files, which is the working folder of the job."""
        return self.path / "code"

    @property
    def run(self) -> Path:
        """Folder of the run, as ``chimera train`` writes it."""
        return self.path / "run"

    @property
    def log(self) -> Path:
        """Output of the job's processes."""
        return self.path / "log"

    @property
    def progress_file(self) -> Path:
        """File of progress and events, one JSON object per line."""
        return self.path / "watch.jsonl"

    def claim(self) -> int | None:
        """Return the descriptor of the lock that the job's driver holds while it runs; None if a driver runs already."""
        make_folder(self.path)
        return try_lock(self.path / "driver.lock")

    def driver_pid(self) -> int | None:
        """Return the process of the job's driver; None if no driver runs."""
        return lock_holder(self.path / "driver.lock")

    def outcome(self, attempt: int) -> Outcome | None:
        """Return the outcome that the driver of an attempt recorded; None if there is none."""
        file = self.path / f"outcome-{attempt}.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=Outcome)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:  # the next attempt finds the result
            return Outcome("broke", f"the outcome in {file} is damaged: {error}")

    def write_outcome(self, attempt: int, outcome: Outcome) -> None:
        """Record the outcome of an attempt on the disk."""
        _write(self.path / f"outcome-{attempt}.json", msgspec.json.encode(outcome))


def _write(file: Path, data: bytes) -> None:
    """Write a file atomically, and flush it to the disk."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with open(draft, "wb", opener=opener) as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
