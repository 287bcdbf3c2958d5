"""What code needs of the machine that runs it: versions and modules."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from importlib import metadata

from chimera.jobs.scheduling.messages import Needs
from chimera.version import __version__

COMPARED = ("chimera", "python", "torch")


def versions() -> dict[str, str]:
    """Return those of this process; torch only where it is installed. Nothing is imported for it."""
    found = {"chimera": __version__, "python": platform.python_version()}
    try:
        return {**found, "torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        return found


def unmet(needs: Needs, here: Mapping[str, str] | None = None) -> str:
    """Return what this process lacks, in one line; nothing if it lacks nothing.

    Versions are compatible that agree in their first two numbers. What the job was not submitted with is not compared.

    Parameters
    ----------
    here : the versions of this process, if they are known.
    """
    own = versions() if here is None else here
    for name in COMPARED:
        wanted, present = needs.versions.get(name), own.get(name, "none")
        if wanted is not None and _release(wanted) != _release(present):
            return f"its {name} is {present}, and the job's is {wanted}"
    missing = sorted({name for name in needs.requires if not _importable(name)})
    if not missing:
        return ""
    modules = " and ".join(repr(name) for name in missing)
    return f"it cannot import {modules}, which the job's code imports: install that on the workers"


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
