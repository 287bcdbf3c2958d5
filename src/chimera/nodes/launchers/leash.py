"""Runs a worker's file for as long as the process that started it lives; ``python leash.py worker.py``.

Stdin is a pipe whose other end only that process holds. However it ends, also by SIGKILL, the kernel closes that end, and
the worker with all of its group is killed: by the kernel itself on Linux, which needs no help from a worker that hangs, and by
a thread everywhere. This file is run by its path and imports the standard library only.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    """Hold on to the pipe, and run the file as a main program."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _let_the_kernel_watch(pipe)
    threading.Thread(target=_watch, args=(pipe,), name="leash", daemon=True).start()
    file = sys.argv.pop(1)
    sys.argv[0] = file
    sys.path[0] = str(Path(file).resolve().parent)  # as if Python had been given the file itself
    runpy.run_path(file, run_name="__main__")


def _let_the_kernel_watch(pipe: int) -> None:
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
