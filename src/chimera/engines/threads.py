"""Limits on the threads that numeric libraries of this process use."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from chimera.core.processes import THREAD_VARIABLES


def limit_threads_of_process(threads: int) -> None:
    """Limit the threads of loaded libraries, and of libraries that will be loaded."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)
    limit_threads(threads)


def limit_threads(threads: int) -> Callable[[], None]:
    """Limit the loaded libraries to ``threads`` threads; return a function that restores the old limits."""
    from threadpoolctl import threadpool_limits

    # Importing waits for another thread that imports it now.
    torch = importlib.import_module("torch") if "torch" in sys.modules else None
    before = (
        0 if torch is None else torch.get_num_threads()
    )  # read before the pools, which include torch's, are limited
    pools = threadpool_limits(threads)
    if torch is not None:
        torch.set_num_threads(threads)

    def give_back() -> None:
        pools.restore_original_limits()
        if torch is not None:
            torch.set_num_threads(before)

    return give_back
