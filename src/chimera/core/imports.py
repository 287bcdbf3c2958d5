"""Imports of large libraries without garbage collection, which takes a seventh of the time of importing torch."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Disable garbage collection within the block, in all threads; restore it afterwards.

    The new objects then belong to the oldest generation. In the youngest one, the next collections would search all of them,
    which took 0.1 s after an import of torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()


def import_all(modules: Iterable[str]) -> None:
    """Import modules early; one that cannot be imported raises its error where it is needed."""
    with without_gc():
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
