"""Who belongs to the cluster: each process writes a file about itself, and again every quarter of a second.

Files and no database: a process that is stopped while it writes holds no lock that the others wait for. Nothing here is fenced;
whoever acts on it has to hold the lease of the journal.
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

Role: TypeAlias = Literal["coordinator", "standby", "worker"]

HEARTBEAT_S = 0.25
"""How often a process writes."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_MAX_BYTES = 1 << 16


class Member(Struct, frozen=True):
    """A process of the cluster.

    Attributes
    ----------
    address : where it answers, ``http://host:port``.
    state : a word of what it does.
    epoch : the highest that it knows of.
    beat_at_s : when it last wrote, by the wall clock.
    """

    role: Role
    name: str
    host: str
    pid: int
    address: str
    state: str
    epoch: int
    beat_at_s: float

    def heartbeat_age_s(self, now_s: float | None = None) -> float:
        """Return how long ago it last wrote."""
        return max(0.0, (time.time() if now_s is None else now_s) - self.beat_at_s)


class Members:
    """The members of a cluster.

    Parameters
    ----------
    folder : with a file for each; it is made by the first that joins.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: dict[str, Member] = {}
        self._lock = threading.Lock()

    def join(self, role: Role, name: str, address: str, *, state: str, epoch: int = 0) -> Member:
        """Let this process be a member; one that had the name before is forgotten.

        Raises
        ------
        ConfigurationError : the name cannot be one of a file, or the folder cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"a member cannot be called {name!r}: letters, digits, '-', '_' and '.' only")
        own = Member(role, name, socket.gethostname(), os.getpid(), address, state, epoch, time.time())
        with self._lock:
            try:
                make_folder(self._folder)
                self._write(own)
            except OSError as error:
                why = error.strerror or error
                raise ConfigurationError(f"the members' folder {self._folder} cannot be written: {why}") from error
            self._own[name] = own
        return own

    def beat(self, name: str, *, state: str | None = None, epoch: int | None = None, role: Role | None = None) -> bool:
        """Say that this process lives, and what it does now; nothing changes for what is None.

        Returns
        -------
        Whether it still has the name: it is False once another process has joined under it, or it has left.
        """
        told = {"state": state, "epoch": epoch, "role": role}
        with self._lock:
            own = self._own.get(name)
            if own is None:
                return False
            there = self._read(self._folder / f"{name}.json")
            if there is not None and (there.pid, there.host) != (own.pid, own.host):
                del self._own[name]
                return False
            given: Any = {key: value for key, value in told.items() if value is not None}
            self._own[name] = own = msgspec.structs.replace(own, **given, beat_at_s=time.time())
            with contextlib.suppress(
                OSError
            ):  # a full disk, say: a later beat may be written, and it lives all the same
                self._write(own)
        return True

    def leave(self, name: str, pid: int | None = None) -> None:
        """Be a member no more; with a ``pid``, let that process be none, which is dead.

        Nothing happens if another process has the name by now.
        """
        with self._lock:
            self._own.pop(name, None)
            file = self._folder / f"{name}.json"
            there = self._read(file)
            if there is not None and there.pid == (os.getpid() if pid is None else pid):
                file.unlink(missing_ok=True)

    def members(self) -> list[Member]:
        """Return all that have joined and not left, also those that died since; by role and name."""
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
        ):  # it left meanwhile; or no process of ours wrote that
            return None

    def _write(self, member: Member) -> None:
        """Write the file at one stroke: readers see the old one or the new one."""
        draft = self._folder / f".{member.name}.{member.pid}"
        write(draft, msgspec.json.encode(member))
        draft.replace(self._folder / f"{member.name}.json")
