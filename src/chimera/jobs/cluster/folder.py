"""Where a cluster for jobs keeps what it knows: the store, the files that travelled, and a folder for each job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from chimera.core.private import make_folder, opener
from chimera.web.folder import Folder, holder, take

DEFAULT = Path("runs/cluster")
TOKEN = "CHIMERA_CLUSTER_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the token of a cluster that is reached by its address."""


class Options(Struct, frozen=True):
    """How a cluster was started.

    Attributes
    ----------
    workers : how many slots it has.
    host, port : where it answers.
    limit_per_user : how many workers one user's jobs may have at once; None is any number.
    keep_days : so many days after its end a job is forgotten, with its run; None is never.
    page : whether it shows its web page.
    ray : the address of the Ray that runs its jobs; empty where this machine does by itself.
    pid : the process that keeps it up.
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
        """Where it answers, as a URL."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


class Outcome(Struct, frozen=True):
    """How an attempt came to its end by itself: one that ``broke`` goes on from its checkpoint, one ``refused`` had no room."""

    state: Literal["done", "failed", "broke", "refused"]
    reason: str = ""


class ClusterFolder(Folder):
    """The folder of a cluster.

    Parameters
    ----------
    path : the folder; `create` makes it.
    """

    def __init__(self, path: Path = DEFAULT) -> None:
        at = "" if path.absolute() == DEFAULT.absolute() else f" --folder {path}"
        self.up = f"chimera cluster up{at}"
        self.down = f"chimera cluster down{at}"
        super().__init__(path, up=self.up, down=self.down)

    @property
    def store(self) -> Path:
        """The file of the store."""
        return self.path / "jobs.sqlite"

    @property
    def files(self) -> Path:
        """The folder of the files that came with jobs, by content."""
        return self.path / "files"

    @property
    def log(self) -> Path:
        """What the cluster's own processes write."""
        return self.path / "cluster.log"

    @property
    def slots_socket(self) -> Path:
        """Where the slots reach the daemon; to be bound and reached from within the folder, since such paths are short."""
        return self.path / "slots.sock"

    def job(self, job: str) -> JobFolder:
        """Return the folder of a job."""
        return JobFolder(self.path / "jobs" / job)

    def note(self, options: Options) -> None:
        """Write down how the cluster that is up was started."""
        _write(self.path / "options.json", msgspec.json.encode(options))

    def address(self) -> str | None:
        """Return where the cluster answers; None if it is not up."""
        options = self.options()
        return options.address if options is not None and options.pid == self.claimant() else None

    def options(self) -> Options | None:
        """Return how the cluster was started that is up, or was last."""
        try:
            return msgspec.json.decode((self.path / "options.json").read_bytes(), type=Options)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


@dataclass(frozen=True)
class JobFolder:
    """What there is of one job: its code, its run, and whether a process works on it."""

    path: Path

    @property
    def code(self) -> Path:
        """The folder of the experiment, as it was submitted."""
        return self.path / "code"

    @property
    def run(self) -> Path:
        """The folder of the run, as ``chimera train`` leaves one."""
        return self.path / "run"

    @property
    def log(self) -> Path:
        """All that the job's processes have printed."""
        return self.path / "log"

    @property
    def watch(self) -> Path:
        """Progress and events, a JSON object a line."""
        return self.path / "watch.jsonl"

    def claim(self) -> int | None:
        """Return the descriptor of a lock that the job's driver is to hold while it lives; None if one lives already."""
        make_folder(self.path)
        return take(self.path / "driver.lock")

    def driver(self) -> int | None:
        """Return the process that works on the job; None if none does."""
        return holder(self.path / "driver.lock")

    def outcome(self, attempt: int) -> Outcome | None:
        """Return how an attempt came to its end by itself; None if it has not."""
        try:
            return msgspec.json.decode((self.path / f"outcome-{attempt}.json").read_bytes(), type=Outcome)
        except FileNotFoundError:
            return None

    def note_outcome(self, attempt: int, outcome: Outcome) -> None:
        """Write down, on the disk, that an attempt has come to its end."""
        _write(self.path / f"outcome-{attempt}.json", msgspec.json.encode(outcome))


def _write(file: Path, data: bytes) -> None:
    """Write a file whole or not at all, and have it on the disk."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with open(draft, "wb", opener=opener) as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
