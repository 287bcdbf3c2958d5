"""What a running cluster takes: memory, threads and open files of each process, and bytes on disk."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_MODULES = {
    "chimera.inference.coordinator_process": "coordinator",
    "chimera.inference.worker.process": "worker",
    "chimera.inference.worker.fork_server": "compute",  # forked processes keep the command of their server
}
ROLES = ("supervisor", *_MODULES.values())
_MIB = 1 << 20


class Process(NamedTuple):
    """One process of a cluster.

    Attributes
    ----------
    role : ``supervisor``, ``coordinator`` (also a standby), ``worker``, ``compute`` or ``zombie``.
    """

    pid: int
    role: str
    memory_mib: float
    threads: int
    files: int


class Census(NamedTuple):
    """A cluster at one moment.

    Attributes
    ----------
    at_s : seconds since the start.
    processes : all of its processes.
    calm : whether no process is killed or stopped at this time.
    journal_mib : size of the journal and of its log.
    logs_mib : size of all logs of processes.
    entries : number of files and folders.
    shared : number of mappings of /dev/shm in all processes.
    """

    at_s: float
    processes: list[Process]
    calm: bool
    journal_mib: float
    logs_mib: float
    entries: int
    shared: int

    def figures(self) -> dict[str, float]:
        """Return the largest figure of each role, and those of the folder, by name."""
        found: dict[str, float] = {
            "journal MiB": self.journal_mib,
            "entries": self.entries,
            "shared": self.shared,
            "processes": len(self.processes),
        }
        for role in ROLES:
            own = [one for one in self.processes if one.role == role]
            found[f"{role} MiB"] = max((one.memory_mib for one in own), default=0.0)
            found[f"{role} threads"] = max((one.threads for one in own), default=0)
            found[f"{role} files"] = max((one.files for one in own), default=0)
        return found

    def zombies(self) -> set[int]:
        """Return the processes that have ended, and for whose exit code their parents have not asked."""
        return {one.pid for one in self.processes if one.role == "zombie"}


def census(folder: Path, supervisor: int, at_s: float, *, calm: bool) -> Census:
    """Return what the cluster of a folder takes now."""
    processes = list(_processes(supervisor))
    files = list(_files(folder))
    return Census(
        at_s,
        processes,
        calm,
        sum(size for file, size in files if file.name.startswith("journal")) / _MIB,
        sum(size for file, size in files if "logs" in file.parts) / _MIB,
        len(files),
        sum(_shared(one.pid) for one in processes),
    )


def left_of(folder: Path) -> list[int]:
    """Return processes that work in a folder, or name it in their command."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}/cwd").readlink()
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if place.is_relative_to(folder) or os.fsencode(folder) in words:
                found.append(pid)
    return found


def children_of(pid: int) -> set[int]:
    """Return the children of a process, and theirs."""
    return set(_below(pid, dict(_parents())))


def _processes(supervisor: int) -> Iterator[Process]:
    for pid in (supervisor, *children_of(supervisor)):
        with contextlib.suppress(OSError, IndexError):  # the process has ended meanwhile
            status = Path(f"/proc/{pid}/status").read_text()
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found = [role for module, role in _MODULES.items() if module.encode() in words]
            role = "zombie" if re.search(r"^State:\s+Z", status, re.MULTILINE) else next(iter(found), "")
            if pid == supervisor:
                role = "supervisor"
            if role:  # else it is being started
                memory = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)
                threads = re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)
                files = 0 if role == "zombie" else len(list(Path(f"/proc/{pid}/fd").iterdir()))
                yield Process(
                    pid, role, int(memory[1]) / 1024 if memory else 0.0, int(threads[1]) if threads else 0, files
                )


def _pids() -> Iterator[int]:
    return (int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())


def _parents() -> Iterator[tuple[int, int]]:
    for pid in _pids():
        with contextlib.suppress(OSError, IndexError):
            yield pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _below(pid: int, parents: dict[int, int]) -> Iterable[int]:
    for child in [one for one, parent in parents.items() if parent == pid]:
        yield child
        yield from _below(child, parents)


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                file = Path(place, name)
                yield file.relative_to(folder), file.stat().st_size


def _shared(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/")
    return 0
