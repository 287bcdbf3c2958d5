"""Strategies, one a file. ``from chimera.strategies import FedAvg`` imports the class of any of them."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return the strategy class ``name``. The first use imports the modules of all strategies."""
    if name[:1].isupper():
        from chimera.strategies.strategy import STRATEGIES

        for entry in STRATEGIES.entries():
            if entry.factory.__name__ == name:
                return entry.factory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
