"""The folder that the processes of a cluster on one host share."""

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
        """The folder that holds a file per process."""
        return self.path / "members"

    @property
    def voter(self) -> Path:
        """The folder of this machine's voter, if the journal is replicated on voters."""
        return self.path / "voter"

    def note_leader(self, epoch: int, address: str) -> None:
        """Write the address of the coordinator, unless that of a later epoch is written already."""
        with open(self.path / "leader.lock", "w", opener=opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            last = self._last_leader()
            if last is None or epoch >= last.epoch:
                draft = self.path / f".leader.{os.getpid()}"
                write(draft, msgspec.json.encode(_Leader(epoch, address)))
                draft.replace(self.path / "leader")

    def leader(self) -> str | None:
        """Return the last address that `note_leader` wrote, or None. That coordinator may be dead."""
        last = self._last_leader()
        return None if last is None else last.address

    def _last_leader(self) -> _Leader | None:
        try:
            return msgspec.json.decode((self.path / "leader").read_bytes(), type=_Leader)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def logs(self, name: str) -> Path:
        """Return the folder of a process's logs; create it if necessary."""
        folder = self.path / "logs" / name
        make_folder(folder)
        return folder

    def create(self) -> None:
        """Create the folder, and a token file that only its owner can read. Existing files are kept.

        Raises as `chimera.web.folder.Folder.create` does.
        """
        super().create()
        make_folder(self.members)

    def access(self) -> Access:
        """Return the access settings of the servers; raises as `token` does."""
        return Access(self.token())

    def client(self) -> Client:
        """Return a client of the cluster."""
        return Client(self.leader, self.token(), up=self._up)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Claim the cluster for this process, until the context ends. The address of the last coordinator is removed."""
        with super().locked() as lock:
            (self.path / "leader").unlink(missing_ok=True)
            yield lock
