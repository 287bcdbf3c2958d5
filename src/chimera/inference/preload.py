"""The modules of the option ``--preload``: named ones, or those that models of Hugging Face need."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.inference.models import modules_of

AUTO = "auto"
"""The libraries of `KINDS`, if they are installed; workers do not wait for them."""
KINDS = ("transformers", "text-generation", "text-embeddings")
"""Kinds of models whose libraries take seconds to import, and whose weights may be shared."""


def awaited(preload: str) -> list[str]:
    """Return the modules that are imported before workers join."""
    return [] if preload == AUTO else [name for name in preload.split(",") if name]


def check_exist(modules: Sequence[str]) -> None:
    """Check that workers, whose import path begins with the current folder, find modules. Do not import them.

    Raises
    ------
    ConfigurationError : a module does not exist.
    """
    for name in modules:
        top = name.partition(".")[0]
        try:
            found = top and (PathFinder.find_spec(top, [str(Path.cwd())]) or find_spec(top))
        except (ValueError, ImportError):
            found = None
        if not found:
            raise ConfigurationError(
                f"--preload: there is no module {name!r} on {socket.gethostname()}: correct the name, or install its package"
            )


def ahead(preload: str) -> list[str]:
    """Return the modules that are imported while workers start."""
    return modules_of(KINDS) if preload == AUTO else []


def preload_for(model: Mapping[str, Any]) -> str:
    """Return the option for a cluster that serves one model."""
    return AUTO if model.get("kind") in KINDS else ""
