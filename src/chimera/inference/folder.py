"""The folder of a cluster on one machine: its journal, its members, its token, its logs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.inference.client import Client

DEFAULT = Path("runs/inference")


class ClusterFolder:
    """Where the parts of a cluster find one another; only its owner may read it.

    Parameters
    ----------
    path : of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.journal, self.members = self.path / "journal.sqlite", self.path / "members.sqlite"

    def create(self) -> None:
        """Make the folder and the token, unless they are there."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                file = os.open(self.path / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(file, "w") as token:
                    token.write(secrets.token_urlsafe(32))
        except OSError as error:
            raise ConfigurationError(f"the cluster's folder {self.path} cannot be made: {error.strerror}") from error

    def token(self) -> str:
        """Return what every request to a member must bear.

        Raises
        ------
        ConfigurationError : there never was a cluster here.
        """
        try:
            return (self.path / "token").read_text().strip()
        except OSError as error:
            raise ConfigurationError(
                f"there is no cluster in {self.path}: start one with 'chimera infer up', or name its folder with --cluster"
            ) from error

    def logs(self, name: str) -> Path:
        """Return the folder that a member writes its logs into."""
        return self.path / "logs" / name

    def client(self) -> Client:
        """Return a client of the cluster."""
        from chimera.inference.journal.sqlite import SqliteJournal

        token = self.token()

        def address() -> str | None:
            with contextlib.closing(SqliteJournal(self.journal)) as journal:
                lease = journal.lease()
            return None if lease is None or lease.left_s <= 0 else lease.address

        return Client(address, token)

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
                    content: Any = json.loads(lock.read() or b"{}")
                    return content.get("pid")
        except (OSError, ValueError):
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
