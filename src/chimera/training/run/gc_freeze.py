"""Garbage collection while many actors live in one process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_ACTORS = 100
_GENERATION_0_THRESHOLD = 50_000  # new objects between two collections of the youngest generation


@contextmanager
def rare_gc(actors: int) -> Iterator[None]:
    """Collect new objects less often than by default, since calls leave no cycles and thousands of calls are in flight.

    With fewer than a hundred ``actors`` in this process this does nothing; nor does `frozen_gc`.
    """
    if actors < _MANY_ACTORS:
        yield
        return
    before = gc.get_threshold()
    gc.set_threshold(_GENERATION_0_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def frozen_gc(actors: int) -> Iterator[None]:
    """Freeze the garbage collector's generations while ``actors`` live in this process, so that it does not scan them again.

    With few actors, the collection before the freeze would cost more than it saves.
    """
    if actors < _MANY_ACTORS or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
