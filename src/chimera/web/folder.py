"""The folder of a cluster on one host: its token, and the lock of the process that runs it."""

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

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError
from chimera.core.private import check_is_own, make_own_folder

_ADDRESS = re.compile(r"[a-z]+:/", re.ASCII)  # Path reduces the two slashes of an address to one
TOKEN = "CHIMERA_CLUSTER_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the token of a cluster that is given by its address."""
MAX_BODY_BYTES = 1 << 30
"""Maximum size of a request to a cluster, in bytes."""


def token_for(address: str) -> str:
    """Return the token for a cluster at an address, from the variable `TOKEN`.

    Raises
    ------
    ConfigurationError : the address is invalid, the token would travel there in clear, or the variable is not set.
    """
    Address.of(address, "the address of the cluster").check_token_is_protected()
    token = os.environ.get(TOKEN, "")
    if not token:
        other = " (CHIMERA_TOKEN is the token of REST nodes)" if os.environ.get("CHIMERA_TOKEN") else ""
        raise ConfigurationError(
            f"the cluster at {address} asks for its token: set {TOKEN} to the content of its 'token' file{other}"
        )
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(f"{TOKEN} is no token: set it to the one line of the cluster's 'token' file")
    return token


@dataclass(frozen=True)
class Access:
    """The access settings of a process of the cluster: clients need its token."""

    token: str
    max_body_bytes: int = MAX_BODY_BYTES
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    insecure: bool = False
    published_on_loopback: bool = False


class Folder:
    """The folder that the processes of one cluster share.

    Parameters
    ----------
    path : the folder; `create` creates it.
    up, down : the commands that start and stop such a cluster, for messages.

    Raises
    ------
    ConfigurationError : ``path`` is an address.
    """

    def __init__(self, path: Path, *, up: str, down: str) -> None:
        if _ADDRESS.match(str(path)):
            raise ConfigurationError(f"{str(path)!r} is an address: give the folder of a cluster of this machine")
        self.path = path.absolute()
        self._up, self._down = up, down

    def create(self) -> None:
        """Create the folder, and in it a token that only its owner can read. An existing token is kept.

        Raises
        ------
        ConfigurationError : the folder cannot be written, or another user owns it.
        """
        try:
            make_own_folder(self.path)
            own = self.path / f"token.{os.getpid()}.{secrets.token_hex(4)}"
            try:
                own.touch(0o600)
                own.write_text(secrets.token_urlsafe(32), "ascii")
                with contextlib.suppress(FileExistsError):
                    os.link(own, self.path / "token")  # atomic; of several processes, the first one's token stays
            finally:
                own.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigurationError(f"the cluster's folder {self.path} cannot be written: {error.strerror}") from error

    def token(self) -> str:
        """Return the bearer token that every request needs.

        Raises
        ------
        ConfigurationError : there is no cluster in this folder, or its token is not readable, or another user owns one of them.
        """
        try:
            for path in (self.path, self.path / "token"):
                check_is_own(
                    path
                )  # otherwise the other user knows the token of the server, or receives the client's jobs
            token = (self.path / "token").read_text("ascii").strip()
        except PermissionError as error:
            raise _foreign(self.path / "token", error) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"there is no cluster at {self.path} ({self._up!r} starts one): {error}"
            ) from error
        if not token:
            raise ConfigurationError(f"the token of the cluster, {self.path / 'token'}, is empty")
        if not token.isprintable() or " " in token:
            raise ConfigurationError(f"the token of the cluster, {self.path / 'token'}, is not one line without spaces")
        return token

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock of the process that runs this cluster, until the context ends or the process dies.

        The context's value is the lock's file descriptor, which a child may inherit.

        Raises
        ------
        ConfigurationError : another process holds the lock.
        """
        lock = try_lock(self.path / "lock")
        if lock is None:
            raise ConfigurationError(f"the cluster in {self.path} is up already; {self._down!r} stops it")
        try:
            write_lock_holder(lock, os.getpid())
            yield lock
        finally:
            os.close(lock)

    def lock_holder(self) -> int | None:
        """Return the id of the process that runs this cluster; None if no process does."""
        return lock_holder(self.path / "lock")

    def await_end(self, timeout_s: float) -> bool:
        """Wait until no process runs this cluster; return False if one still does after ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while self.lock_holder() is not None:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True


def try_lock(file: Path) -> int | None:
    """Lock a file, and return the descriptor of the lock; None if another process holds it.

    The kernel keeps the lock until the last copy of the descriptor is closed.

    Raises
    ------
    ConfigurationError : the file belongs to another user.
    """
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except PermissionError as error:
        raise _foreign(file, error) from error
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)  # `lock_holder` holds the lock briefly
        except OSError:
            os.close(lock)
            raise
        else:
            os.ftruncate(lock, 0)
            return lock
    os.close(lock)
    return None


def write_lock_holder(lock: int, pid: int) -> None:
    """Write the id of the process that holds a lock into its file."""
    os.pwrite(lock, json.dumps({"pid": pid}).encode(), 0)


def lock_holder(file: Path) -> int | None:
    """Return the id of the process that holds the lock on a file, as written there; None if no process does.

    Raises
    ------
    ConfigurationError : the file belongs to another user.
    """
    for _ in range(50):
        try:
            with file.open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(json.loads(lock.read())["pid"])
                return None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise _foreign(file, error) from error
        except (ValueError, KeyError, TypeError):
            time.sleep(0.02)  # its new holder has not written its id yet
    return None


def _foreign(file: Path, error: PermissionError) -> ConfigurationError:
    return ConfigurationError(f"{file} cannot be opened: {error.strerror}: only its owner can use it")
