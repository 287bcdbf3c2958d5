"""What the processes of one host share: a folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from chimera.core.errors import ConfigurationError
from chimera.inference.client import MOST_BYTES, Client

DEFAULT = Path("runs/inference")


@dataclass(frozen=True)
class Access:
    """Who may ask a process of the cluster: whoever bears its token; over plain HTTP, here or, a voter, on its network."""

    token: str
    max_body_bytes: int = MOST_BYTES
    tls_cert: Path | None = None
    tls_key: Path | None = None


class _Leader(Struct, frozen=True):
    epoch: int
    address: str


class ClusterFolder:
    """The journal, the members, the token and the logs of a cluster on one host.

    Parameters
    ----------
    path : the folder; `create` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

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
        with (self.path / "leader.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            last = self._noted()
            if last is None or epoch >= last.epoch:
                draft = self.path / f".leader.{os.getpid()}"
                draft.write_bytes(msgspec.json.encode(_Leader(epoch, address)))
                draft.replace(self.path / "leader")

    def leader(self) -> str | None:
        """Return where the last coordinator that was written down answers; it may be dead."""
        last = self._noted()
        return None if last is None else last.address

    def _noted(self) -> _Leader | None:
        try:
            return msgspec.json.decode((self.path / "leader").read_bytes(), type=_Leader)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def logs(self, name: str) -> Path:
        """Return the folder of a process's logs, which is there from now on."""
        folder = self.path / "logs" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def create(self) -> None:
        """Make the folder, and a token that only its owner can read; what is there stays.

        Raises
        ------
        ConfigurationError : it cannot be written.
        """
        try:
            self.members.mkdir(parents=True, exist_ok=True)
            mine = self.path / f"token.{os.getpid()}.{secrets.token_hex(4)}"
            mine.touch(0o600)
            mine.write_text(secrets.token_urlsafe(32), "ascii")
            with contextlib.suppress(FileExistsError):
                os.link(mine, self.path / "token")  # whole or not at all, and the first one's where several create it
            mine.unlink()
        except OSError as error:
            raise ConfigurationError(f"the cluster's folder {self.path} cannot be written: {error.strerror}") from error

    def token(self) -> str:
        """Return what every request must bear.

        Raises
        ------
        ConfigurationError : there is no such cluster, or its token is not readable.
        """
        try:
            token = (self.path / "token").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"there is no cluster at {self.path} ('chimera infer up --cluster {self.path}' starts one): {error}"
            ) from error
        if not token:
            raise ConfigurationError(f"the token of the cluster, {self.path / 'token'}, is empty")
        return token

    def access(self) -> Access:
        """Return who may ask; raises as `token` does."""
        return Access(self.token())

    def client(self) -> Client:
        """Return a client of the cluster."""
        return Client(self.leader, self.token())

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Be the one process that runs this cluster, until the context ends; the kernel takes the claim from one that dies.

        Raises
        ------
        ConfigurationError : another one does.
        """
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"the cluster in {self.path} is up already; 'chimera infer down' ends it"
                ) from None
            (self.path / "leader").unlink(missing_ok=True)  # nobody leads yet
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps({"pid": os.getpid()}).encode(), 0)
            yield
        finally:
            os.close(lock)

    def claimant(self) -> int | None:
        """Return the process that runs this cluster; None if nobody does."""
        try:
            with (self.path / "lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(json.loads(lock.read())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def await_end(self, timeout_s: float) -> bool:
        """Return whether nobody runs this cluster any more, at the latest after so long."""
        deadline_s = time.monotonic() + timeout_s
        while self.claimant() is not None:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True
