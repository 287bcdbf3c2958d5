"""The modules of the option ``--preload``: named ones, or those that models of Hugging Face need."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
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
    """Check that workers find modules; their import path begins with the current folder. Import no modules and no packages.

    Raises
    ------
    ConfigurationError : a module does not exist.
    """
    for name in modules:
        if name not in sys.modules and not _exists(name):
            raise ConfigurationError(
                f"--preload: there is no module {name!r} on {socket.gethostname()}: correct the name, or install its package"
            )


def _exists(name: str) -> bool:
    """Return whether a module exists as a file, or in a file of its package. One that its package creates counts as missing."""
    folders: Sequence[str] | None = None
    try:
        for part in name.split("."):
            found = (
                _top(part) if folders is None else PathFinder.find_spec(part, folders)
            )  # `find_spec` would import the parent
            if found is None:
                return False
            folders = list(found.submodule_search_locations or ())
    except (ValueError, ImportError):
        return False
    return True


def _top(name: str) -> ModuleSpec | None:
    """Return the place of a module that is in no package; the current folder comes first, as in workers."""
    if not name:
        return None
    found = PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])
    if found is not None and found.loader is not None:
        return found
    other = find_spec(name)  # for instance a built-in module; `found` is None or a folder without code
    return other if found is None or (other is not None and other.origin) else found


def ahead(preload: str) -> list[str]:
    """Return the modules that are imported while workers start."""
    return modules_of(KINDS) if preload == AUTO else []


def preload_for(model: Mapping[str, Any]) -> str:
    """Return the option for a cluster that serves one model."""
    return AUTO if model.get("kind") in KINDS else ""
