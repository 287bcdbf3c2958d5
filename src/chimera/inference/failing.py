"""Processes of a cluster that end repeatedly within seconds of their start: a file for each, for the coordinator."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import msgspec

from chimera.core.private import make_folder, write
from chimera.inference.membership import Member, Members, Role


class FailingProcesses:
    """The files of failing processes. The supervisor writes them; coordinators of its machine read them.

    Parameters
    ----------
    folder : the folder of these files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clear(self) -> None:
        """Delete the files of an earlier supervisor."""
        for file in self._folder.glob("*.json"):
            file.unlink(missing_ok=True)

    def report(self, name: str, pid: int, state: str) -> None:
        """Write the state of a process that fails, with its last process ID."""
        role: Role = "standby" if name.removeprefix("c").isdigit() else "worker"
        failing = Member(role, name, socket.gethostname(), pid, "", state, 0, time.time())
        with contextlib.suppress(OSError):  # for instance a full disk, which may have caused the exit
            make_folder(self._folder)
            draft = self._folder / f".{name}.{os.getpid()}"
            write(draft, msgspec.json.encode(failing))
            draft.replace(self._folder / f"{name}.json")

    def forget(self, name: str) -> None:
        """Delete the file of a process that runs again, or that the cluster no longer needs."""
        with contextlib.suppress(OSError):
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def states(self) -> dict[str, Member]:
        """Return the processes that fail, by name."""
        return {one.name: one for one in Members(self._folder).members()}
