"""The members of a cluster: each process writes a file about itself, and renews it as a heartbeat.

Files are used instead of a database, because a process that is stopped while it writes then holds no lock. Membership is not
fenced: only the holder of the journal's lease may act on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder, write
from chimera.core.processes import start_of

Role: TypeAlias = Literal["coordinator", "standby", "worker"]

HEARTBEAT_S = 0.25
"""Seconds between two heartbeats."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_MAX_BYTES = 1 << 16


class Member(Struct, frozen=True):
    """A process of the cluster.

    Attributes
    ----------
    address : its address, ``http://host:port``.
    state : its state, in a word or two.
    epoch : the highest epoch that it knows.
    beat_at_s : time of its last heartbeat, by the wall clock.
    start : `chimera.core.processes.start_of` the process.
    """

    role: Role
    name: str
    host: str
    pid: int
    address: str
    state: str
    epoch: int
    beat_at_s: float
    start: str = ""

    def heartbeat_age_s(self, now_s: float | None = None) -> float:
        """Return the seconds since its last heartbeat.

        A heartbeat in the future counts as equally old: the clock was set back.
        """
        return abs((time.time() if now_s is None else now_s) - self.beat_at_s)


class Members:
    """The members of a cluster.

    Parameters
    ----------
    folder : folder with a file per member; the first `join` creates it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: dict[str, Member] = {}
        self._lock = threading.Lock()

    def join(self, role: Role, name: str, address: str, *, state: str, epoch: int = 0) -> Member:
        """Add this process as a member. An earlier member with the name is replaced.

        Raises
        ------
        ConfigurationError : the name is invalid, or the folder cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"invalid name of a member: {name!r}; use letters, digits, '-', '_' and '.'")
        pid = os.getpid()
        own = Member(role, name, socket.gethostname(), pid, address, state, epoch, time.time(), start_of(pid))
        with self._lock:
            try:
                make_folder(self._folder)
                self._write(own)
            except OSError as error:
                reason = error.strerror or error
                raise ConfigurationError(f"the members' folder {self._folder} cannot be written: {reason}") from error
            self._own[name] = own
        return own

    def beat(self, name: str, *, state: str | None = None, epoch: int | None = None, role: Role | None = None) -> bool:
        """Write a heartbeat of this process, with changes of its state, epoch or role; None: unchanged.

        Returns
        -------
        Whether this process still has the name: False once another process has joined with it, or this one has left.
        """
        changes = {"state": state, "epoch": epoch, "role": role}
        with self._lock:
            own = self._own.get(name)
            if own is None:
                return False
            there = self._read(self._folder / f"{name}.json")
            if there is not None and (there.pid, there.host) != (own.pid, own.host):
                del self._own[name]
                return False
            changed: Any = {key: value for key, value in changes.items() if value is not None}
            self._own[name] = own = msgspec.structs.replace(own, **changed, beat_at_s=time.time())
            with contextlib.suppress(
                OSError
            ):  # such as a full disk: a later beat may be written, and the process still runs
                self._write(own)
        return True

    def leave(self, name: str, pid: int | None = None) -> None:
        """Remove this process from the members; with a ``pid``, remove that dead process.

        Do nothing if another process has the name.
        """
        with self._lock:
            self._own.pop(name, None)
            file = self._folder / f"{name}.json"
            there = self._read(file)
            if there is not None and there.pid == (os.getpid() if pid is None else pid):
                file.unlink(missing_ok=True)

    def members(self) -> list[Member]:
        """Return all members that have joined and not left, dead ones too, sorted by role and name."""
        found = [self._read(file) for file in sorted(self._folder.glob("*.json"))]
        return sorted((one for one in found if one is not None), key=lambda one: (one.role, one.name))

    def _read(self, file: Path) -> Member | None:
        try:
            with file.open("rb") as opened:
                return msgspec.json.decode(opened.read(_MAX_BYTES), type=Member)
        except (
            OSError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
            RecursionError,
        ):  # it has left meanwhile, or the file is not ours
            return None

    def _write(self, member: Member) -> None:
        """Write the file atomically: readers see the old or the new content. A folder that was deleted is created again."""
        if not self._folder.exists() and self._folder.parent.exists():  # else the cluster's folder was moved
            make_folder(self._folder)
        draft = self._folder / f".{member.name}.{member.pid}"
        write(draft, msgspec.json.encode(member))
        draft.replace(self._folder / f"{member.name}.json")
