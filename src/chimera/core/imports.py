"""Imports of large libraries without garbage collection, which takes a seventh of the time of importing torch."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Disable garbage collection within the block, in all threads; restore it afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def import_all(modules: Iterable[str]) -> None:
    """Import modules early; one that cannot be imported raises its error where it is needed."""
    with without_gc():
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
