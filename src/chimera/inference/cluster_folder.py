"""What the processes of one host share: a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from chimera.core.private import make_folder, opener, write
from chimera.inference.client import Client
from chimera.web.folder import Access, Folder

DEFAULT = Path("runs/inference")


class _Leader(Struct, frozen=True):
    epoch: int
    address: str


class ClusterFolder(Folder):
    """The journal, the members, the token and the logs of a cluster on one host.

    Parameters
    ----------
    path : the folder; `create` makes it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, up=f"chimera infer up --cluster {path.absolute()}", down="chimera infer down")

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.path / "journal.sqlite"

    @property
    def members(self) -> Path:
        """The folder with a file for each process."""
        return self.path / "members"

    @property
    def vote(self) -> Path:
        """The folder in which this machine's voter keeps the journal, where voters do."""
        return self.path / "voter"

    def note_leader(self, epoch: int, address: str) -> None:
        """Write down where the coordinator answers, unless a later one is written down."""
        with open(self.path / "leader.lock", "w", opener=opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            last = self._noted()
            if last is None or epoch >= last.epoch:
                draft = self.path / f".leader.{os.getpid()}"
                write(draft, msgspec.json.encode(_Leader(epoch, address)))
                draft.replace(self.path / "leader")

    def leader(self) -> str | None:
        """Return where the last coordinator that was written down answers; it may be dead."""
        last = self._noted()
        return None if last is None else last.address

    def _noted(self) -> _Leader | None:
        try:
            return msgspec.json.decode((self.path / "leader").read_bytes(), type=_Leader)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def logs(self, name: str) -> Path:
        """Return the folder of a process's logs, which is there from now on."""
        folder = self.path / "logs" / name
        make_folder(folder)
        return folder

    def create(self) -> None:
        """Make the folder, and a token that only its owner can read; what is there stays; raises as that of every cluster."""
        super().create()
        make_folder(self.members)

    def access(self) -> Access:
        """Return who may ask; raises as `token` does."""
        return Access(self.token())

    def client(self) -> Client:
        """Return a client of the cluster."""
        return Client(self.leader, self.token())

    @contextlib.contextmanager
    def claimed(self) -> Iterator[int]:
        """Be the one process that runs this cluster, until the context ends; nobody leads at first."""
        with super().claimed() as lock:
            (self.path / "leader").unlink(missing_ok=True)
            yield lock
