"""Requirements of a job on a worker: versions and modules."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from importlib import metadata

from chimera.jobs.scheduling.messages import Requirements
from chimera.version import __version__

COMPARED = ("chimera", "python", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Chimera, Python and, if installed, torch, without importing them."""
    found = {"chimera": __version__, "python": platform.python_version()}
    try:
        return {**found, "torch": metadata.version("torch")}
    except metadata.PackageNotFoundError:
        return found


def unmet(requirements: Requirements, here: Mapping[str, str] | None = None) -> str:
    """Return the first requirement that this process does not meet, in one line; empty if it meets all.

    Versions are compatible if their first two numbers agree. Versions that the job does not state are not compared.

    Parameters
    ----------
    here : versions of this process; default: `versions`.
    """
    own = versions() if here is None else here
    for name in COMPARED:
        wanted, present = requirements.versions.get(name), own.get(name, "none")
        if wanted is not None and _release(wanted) != _release(present):
            return f"its {name} is {present}, and the job's is {wanted}"
    missing = sorted({name for name in requirements.modules if not _importable(name)})
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
