"""Chimera: distributed machine learning from a laptop to a cluster.

Layers, from the top; an import goes down, never up, never sideways between the five families::

    cli
     └─ training
         └─ strategies · codecs · data · models · engines · report
             └─ core
"""

from __future__ import annotations

import importlib
from typing import Any

from chimera.version import __version__

_PLACES: dict[str, str] = {}

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
