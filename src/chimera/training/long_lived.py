"""What lives as long as a run, and the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100


@contextmanager
def long_lived(actors: int) -> Iterator[None]:
    """Keep the collector from going through so many actors of this process, again and again, while they all live.

    With few it is not worth the one collection it begins with, which leaves no garbage to be kept.
    """
    if actors < _MANY or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
