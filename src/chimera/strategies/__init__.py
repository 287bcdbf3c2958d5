"""Strategies: who does what next. One strategy a file; ``from chimera.strategies import FedAvg`` has the class of each."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return the class of that name among the strategies; their modules are imported when the first is asked for."""
    if name[:1].isupper():
        from chimera.strategies.strategy import STRATEGIES

        for entry in STRATEGIES.entries():
            if entry.factory.__name__ == name:
                return entry.factory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
