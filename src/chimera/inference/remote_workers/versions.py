"""Versions of Chimera and of libraries on the machine of a remote worker and on that of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from chimera.core.printable import printable
from chimera.version import __version__

CHIMERA = "chimera"
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "pillow")
_MAX_CHARACTERS = 40


@cache
def own_versions() -> dict[str, str]:
    """Return the versions of Chimera and of the installed libraries that compute answers, without suffixes for CPU or GPU."""
    found = {CHIMERA: __version__}
    for name in _LIBRARIES:
        try:
            known: Any = metadata.metadata(name)
            version = str(known.get("Version", ""))  # an interrupted installation has none
        except (metadata.PackageNotFoundError, ValueError, OSError):  # not installed, not UTF-8, or not readable
            continue
        if version:
            found[name] = version.partition("+")[0][:_MAX_CHARACTERS]
    return found


def refusal(worker: str, versions: object) -> str:
    """Return why a worker cannot join, with the versions of Chimera of both sides; empty if it can.

    Parameters
    ----------
    versions : what the worker's machine has sent; earlier versions of Chimera send nothing.
    """
    theirs = versions.get(CHIMERA) if isinstance(versions, Mapping) else None
    if theirs == __version__:
        return ""
    named = "an earlier version of Chimera" if theirs is None else f"Chimera {_short(theirs)}"
    return f"{_short(worker)} runs {named}, and the cluster Chimera {__version__}: use one version on all machines"


def differences(versions: Mapping[str, str]) -> str:
    """Return the libraries of which a worker's machine has another version than this one; empty if there are none."""
    own = own_versions()
    found = [
        f"{name} {_short(version)} instead of {own[name]}"
        for name, version in sorted(versions.items())
        if name != CHIMERA and own.get(name, version) != version
    ]
    return ", ".join(found)


def _short(text: object) -> str:
    return printable(str(text)[:_MAX_CHARACTERS])
