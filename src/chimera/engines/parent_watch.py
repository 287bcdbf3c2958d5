"""Termination of a process when its parent process ends.

A program calls `exit_with_parent`, or ``python parent_watch.py worker.py`` runs a file. Stdin is a pipe whose other end only
the parent holds. When the parent ends, also by SIGKILL, the kernel closes that end. A thread then kills the process and its
process group. On Linux the kernel kills them, too, even if the process hangs. This file may be run by its path and imports the
standard library only.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path


def exit_with_parent() -> None:
    """Kill this process group when the other end of stdin closes. From now on, stdin is empty.

    The process must have a process group of its own (``start_new_session=True``).
    """
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    kill_group_after(pipe)
    threading.Thread(target=_watch, args=(pipe,), name="parent-watch", daemon=True).start()


def main() -> None:
    """Call `exit_with_parent`, and run the given file as a main program."""
    exit_with_parent()
    file = sys.argv.pop(1)
    sys.argv[0] = file
    sys.path[0] = str(Path(file).resolve().parent)  # as if Python ran the file directly
    runpy.run_path(file, run_name="__main__")


def kill_group_after(pipe: int) -> None:
    """Make the kernel kill this process group when the other end of a pipe closes; only on Linux."""
    if sys.platform != "linux":
        return
    import fcntl

    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())  # the whole group is signalled
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
