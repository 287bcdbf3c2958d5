"""Imports of large libraries without collections of garbage, which take a seventh of the time of importing torch."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Collect no garbage within the block, in all threads; afterwards as before."""
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
