"""Limits on the threads that numeric libraries of this process use."""

from __future__ import annotations

import sys
from collections.abc import Callable


def limit_threads(threads: int) -> Callable[[], None]:
    """Limit the loaded libraries to ``threads`` threads; return a function that restores the old limits."""
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
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
