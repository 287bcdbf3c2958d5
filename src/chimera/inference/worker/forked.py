"""Common functions of forked processes: their imports, their work, their threads, and their end."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from chimera.inference.worker.computing import reason


def run_forked(work: Callable[[], None]) -> NoReturn:
    """Do the work of a forked process, and end it; an exception is printed, and its exit code is 1 then."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # the end of the process: nothing may return into the code of the parent
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # without teardown: the exit handlers belong to the parent


def import_all(modules: Sequence[str]) -> dict[str, str]:
    """Import modules; return why some cannot be imported, by name."""
    failures = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # libraries raise any type of error
            failures[name] = f"{name!r} cannot be imported: {reason(error)}"
    return failures


def reap() -> tuple[int, int] | None:
    """Return a child that has ended, and its exit code. Its own children are killed before its id can be reused."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(found.si_pid, signal.SIGKILL)  # the processes of the tree have no group of their own
    _, status = os.waitpid(found.si_pid, 0)
    return found.si_pid, os.waitstatus_to_exitcode(status)


def single_thread() -> int:
    """Limit torch to this thread, and return the number of threads before; 0 if torch is not imported.

    The threads of OpenMP do not survive a fork, and the forked process would wait for them.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    threads = int(torch.get_num_threads())
    torch.set_num_threads(1)
    return threads


def set_threads(threads: int) -> None:
    """Set the number of threads of torch; 0: torch is not imported."""
    if threads:
        sys.modules["torch"].set_num_threads(threads)
