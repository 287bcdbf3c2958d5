"""The memory that workers use, and how many of them fit in this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError

WORKER_BYTES = 56 << 20
"""Memory of a worker (proportional set size) with the smallest model: 44 MiB, and 12 MiB of its computing process."""
OTHER_BYTES = 192 << 20
"""Memory of the other processes of a cluster: the supervisor, the fork server, a coordinator and a standby."""
_ROOT = Path("/")


def fitting(available: int, running: int | None = None) -> int:
    """Return how many workers can run, if new processes can use ``available`` bytes.

    Parameters
    ----------
    running : number of workers of a cluster that runs already; None: the other processes of the cluster start, too.
    """
    if running is None:
        return max(available - OTHER_BYTES, 0) // WORKER_BYTES
    return running + max(available, 0) // WORKER_BYTES


def check_memory(workers: int, what: str, available: int | None, running: int | None = None) -> None:
    """Check that the memory holds the processes of workers. Their models need more, which is not checked.

    Parameters
    ----------
    workers, what : number of workers, and its name in the error.
    available : bytes, see `available_bytes`; None: unknown, so nothing is checked.
    running : as of `fitting`.

    Raises
    ------
    ConfigurationError : fewer workers fit. The message names their number.
    """
    if available is None or workers <= (running or 0) or workers <= (fit := fitting(available, running)):
        return
    raise ConfigurationError(
        f"{what}: {counted(workers, 'worker')} do not fit in the memory: each needs at least {WORKER_BYTES >> 20} MiB, and "
        f"{available >> 20:,} MiB are available, so the maximum is {counted(fit, 'worker')}"
    )


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes that new processes can use before the machine, or a control group of this process, is out of memory.

    Parameters
    ----------
    root : folder with ``proc`` and ``sys``.

    Returns
    -------
    None if it is unknown, as on systems other than Linux.
    """
    known = [*_of_machine(root), *_of_groups(root)]
    return max(min(known), 0) if known else None


def _of_machine(root: Path) -> Iterator[int]:
    yield from (1024 * kib for kib in _numbers(root / "proc/meminfo", "MemAvailable:"))


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that are left to each control group of this process which has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            names = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        mount, limit_name, usage_name, cache_name = names
        group = root / mount / path.lstrip("/")
        for folder in (group, *(each for each in group.parents if each.is_relative_to(root / mount))):
            for limit in _numbers(folder / limit_name):
                cache = sum(_numbers(folder / "memory.stat", cache_name))  # the kernel frees it for new processes
                yield from (limit - usage + cache for usage in _numbers(folder / usage_name))


def _numbers(file: Path, key: str = "") -> list[int]:
    """Return the number of a line ``key NUMBER``, or of the file; empty if there is none, as in a group without a limit."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return []
    words = (
        next((line.split()[1:] for line in text.splitlines() if line.split()[:1] == [key]), []) if key else text.split()
    )
    return [int(words[0])] if words and words[0].isdecimal() else []
