"""What lives as long as a run, and the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100
_YOUNG = 50_000  # objects, after which those that came meanwhile are looked at


@contextmanager
def long_lived(actors: int) -> Iterator[None]:
    """Keep the collector from going through so many actors of this process, again and again, while they all live.

    With few it is not worth the one collection it begins with, which leaves no garbage to be kept. What comes meanwhile is
    looked at less often than usual: calls leave no cycles, but thousands of them are under way.
    """
    if actors < _MANY or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
