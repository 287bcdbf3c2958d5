"""How many threads the arithmetic of this process may use."""

from __future__ import annotations

import sys
from collections.abc import Callable


def limit_threads(threads: int) -> Callable[[], None]:
    """Limit the libraries that are loaded already, and return what gives them back what they had."""
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = 0 if torch is None else torch.get_num_threads()  # asked first, for the pools are torch's too
    pools = threadpool_limits(threads)
    if torch is not None:
        torch.set_num_threads(threads)

    def give_back() -> None:
        pools.restore_original_limits()
        if torch is not None:
            torch.set_num_threads(before)

    return give_back
