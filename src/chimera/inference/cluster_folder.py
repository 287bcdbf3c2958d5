"""The folder that the processes of a cluster on one host share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from chimera.core.private import make_folder, opener, write
from chimera.inference.client import Client
from chimera.inference.remote_workers.protocol import worker_token
from chimera.web.folder import Access, Folder, token_for

DEFAULT = Path("runs/inference")
MAX_WORKERS = 1000
"""Maximum number of workers of a cluster, besides remote ones."""
FIRST_VERSION = 1
"""Version of bounds with which machines with voters start: they copy each change by the coordinator, which is newer."""
MAX_OUTPUT_BYTES = 16 << 20
"""Size of a process's output from which a restart begins another file."""


class _Leader(Struct, frozen=True):
    epoch: int
    address: str


class Scale(Struct, frozen=True):
    """The number of workers of a cluster, and its bounds; if they differ, the coordinator changes it.

    Attributes
    ----------
    version : grows with each change; 0 until the first command that sets the number. Machines with voters copy a newer version.
    """

    count: int
    least: int
    most: int
    version: int = 0


class ClusterFolder(Folder):
    """The journal, the members, the token and the logs of a cluster on one host.

    Parameters
    ----------
    path : the folder; `create` makes it.
    """

    def __init__(self, path: Path) -> None:
        at = f"--cluster {shlex.quote(str(path.absolute()))}"
        super().__init__(path, up=f"chimera infer up {at}", down=f"chimera infer down {at}")

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.path / "journal.sqlite"

    @property
    def members(self) -> Path:
        """The folder that holds a file per process."""
        return self.path / "members"

    @property
    def failing(self) -> Path:
        """The folder that holds a file per process that fails at its start (`chimera.inference.failing`)."""
        return self.path / "failing"

    @property
    def voter(self) -> Path:
        """The folder of this machine's voter, if the journal is replicated on voters."""
        return self.path / "voter"

    @property
    def worker_token(self) -> Path:
        """The file with the token of remote workers."""
        return self.path / "worker-token"

    def note_leader(self, epoch: int, address: str) -> None:
        """Write the address of the coordinator, unless that of a later epoch is written already."""
        with self._lock("leader"):
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

    def set_bounds(self, least: int, most: int, version: int = 0) -> None:
        """Set the bounds of the number of workers, and move the number between them; equal bounds fix it.

        Parameters
        ----------
        version : the least version of the change.
        """
        with self._lock("workers"):
            last = self.scale()
            count = least if last is None else min(max(last.count, least), most)
            later = version if last is None or not version else max(version, last.version + 1)
            self._write_scale(Scale(count, least, most, later))

    def set_workers(self, count: int, seen: Scale) -> None:
        """Set the number of workers within the bounds. Do nothing if the scale is not the one that the caller has ``seen``."""
        with self._lock("workers"):
            if self.scale() == seen:
                later = seen.version + 1 if seen.version else 0
                self._write_scale(Scale(count, seen.least, seen.most, later))

    def copy_scale(self, scale: Scale) -> None:
        """Take over the number of workers that the coordinator of another machine has, if its version is newer."""
        with self._lock("workers"):
            last = self.scale()
            if scale.version > (0 if last is None else last.version):
                self._write_scale(scale)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Hold the lock of a file that several threads and processes read and then write."""
        with open(self.path / f"{name}.lock", "w", opener=opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write_scale(self, scale: Scale) -> None:
        draft = self.path / f".workers.{os.getpid()}.{threading.get_ident()}"
        write(draft, msgspec.json.encode(scale))
        draft.replace(self.path / "workers")

    def scale(self) -> Scale | None:
        """Return the number of workers that was set last; None before that. The process that runs the cluster follows it."""
        try:
            return msgspec.json.decode((self.path / "workers").read_bytes(), type=Scale)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def logs(self, name: str) -> Path:
        """Return the folder of a process's logs; create it if necessary."""
        folder = self.path / "logs" / name
        make_folder(folder)
        return folder

    def output(self, name: str) -> Path:
        """Return the file of a process's output; a long one is moved to ``output.log.1`` first."""
        file = self.logs(name) / "output.log"
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_size > MAX_OUTPUT_BYTES:
                file.replace(file.with_name("output.log.1"))
        return file

    def create(self) -> None:
        """Create the folder, and files with the tokens of clients and of remote workers that only its owner can read.

        An existing token is kept. Raises as `chimera.web.folder.Folder.create` does.
        """
        super().create()
        make_folder(self.members)
        write(self.worker_token, worker_token(self.token()).encode())

    def access(self) -> Access:
        """Return the access settings of the servers; raises as `token` does."""
        return Access(self.token())

    def client(self) -> Client:
        """Return a client of the cluster."""
        return Client(self.leader, self.token(), up=self._up, down=self._down)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Claim the cluster for this process, until the context ends.

        The address of the last coordinator and the last number of workers are removed.
        """
        with super().locked() as lock:
            for name in ("leader", "workers"):
                (self.path / name).unlink(missing_ok=True)
            yield lock


def client_of(cluster: str | os.PathLike[str]) -> Client:
    """Return the client of a cluster, given by its folder or its fixed address (`chimera infer up --port`).

    Raises
    ------
    ConfigurationError : there is no cluster in the folder, or no token for the address.
    """
    where = os.fspath(cluster)
    if not is_address(where):
        return ClusterFolder(Path(where)).client()
    token = token_for(where)
    return Client(lambda: where.rstrip("/"), token)


def is_address(cluster: str) -> bool:
    """Return whether the name of a cluster is an address, and not a folder."""
    return "://" in cluster
