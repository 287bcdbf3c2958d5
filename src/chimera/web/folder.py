"""The folder by which the processes of one cluster on one host find one another: a token, and a claim."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder

_ADDRESS = re.compile(r"[a-z]+:/", re.ASCII)  # a path has one slash where the address had two
MOST_BYTES = 1 << 30
"""The size of the largest request that a cluster takes."""


@dataclass(frozen=True)
class Access:
    """Who may ask a process of the cluster: whoever bears its token."""

    token: str
    max_body_bytes: int = MOST_BYTES
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    insecure: bool = False
    published_on_loopback: bool = False


class Folder:
    """What the processes of one cluster share.

    Parameters
    ----------
    path : the folder; `create` makes it.
    up, down : what a person types to start and to end such a cluster.

    Raises
    ------
    ConfigurationError : it is an address.
    """

    def __init__(self, path: Path, *, up: str, down: str) -> None:
        if _ADDRESS.match(str(path)):
            raise ConfigurationError(f"{str(path)!r} is an address: give the folder of a cluster of this machine")
        self.path = path.absolute()
        self._up, self._down = up, down

    def create(self) -> None:
        """Make the folder, and a token that only its owner can read; what is there stays.

        Raises
        ------
        ConfigurationError : it cannot be written.
        """
        try:
            make_folder(self.path)
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
                f"there is no cluster at {self.path} ({self._up!r} starts one): {error}"
            ) from error
        if not token:
            raise ConfigurationError(f"the token of the cluster, {self.path / 'token'}, is empty")
        return token

    @contextlib.contextmanager
    def claimed(self) -> Iterator[int]:
        """Be the one process that runs this cluster, until the context ends; the kernel takes the claim from one that dies.

        The context has the descriptor of the claim, for one that hands it on to a child.

        Raises
        ------
        ConfigurationError : another one does.
        """
        lock = take(self.path / "lock")
        if lock is None:
            raise ConfigurationError(f"the cluster in {self.path} is up already; {self._down!r} ends it")
        try:
            note_holder(lock, os.getpid())
            yield lock
        finally:
            os.close(lock)

    def claimant(self) -> int | None:
        """Return the process that runs this cluster; None if nobody does."""
        return holder(self.path / "lock")

    def await_end(self, timeout_s: float) -> bool:
        """Return whether nobody runs this cluster any more, at the latest after so long."""
        deadline_s = time.monotonic() + timeout_s
        while self.claimant() is not None:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True


def take(file: Path) -> int | None:
    """Return the descriptor of a lock on a file, which the kernel holds until its last copy is closed; None if it is taken."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)  # `holder` holds it for a moment
        else:
            os.ftruncate(lock, 0)
            return lock
    os.close(lock)
    return None


def note_holder(lock: int, pid: int) -> None:
    """Write down which process holds a lock."""
    os.pwrite(lock, json.dumps({"pid": pid}).encode(), 0)


def holder(file: Path) -> int | None:
    """Return the process that holds the lock on a file, as it has written there; None if nobody does."""
    for _ in range(50):
        try:
            with file.open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(json.loads(lock.read())["pid"])
                return None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            time.sleep(0.02)  # whoever took it is about to write
    return None
