"""Plug-ins of other distributions, which register them by entry points such as ``chimera.strategies``."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from chimera.core.errors import ConfigurationError


@cache
def installed(family: str) -> dict[str, EntryPoint]:
    """Return the entry points of ``chimera.<family>`` by name; of several with one name, the first that Python finds."""
    found: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=f"chimera.{family}"):
        found.setdefault(point.name, point)
    return found


def distribution_of(point: EntryPoint) -> str:
    """Return name and version of the distribution that has an entry point."""
    return "" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def load(point: EntryPoint, kind: str) -> Any:
    """Import the object of an entry point; ``kind`` is the word for the plug-in in messages.

    Raises
    ------
    ConfigurationError : its module or its attribute cannot be imported.
    """
    try:
        return point.load()
    except Exception as error:  # the module is not Chimera's, and may raise anything
        raise ConfigurationError(
            f"the {kind} {point.name!r} of {distribution_of(point)} cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {error}; update or uninstall that distribution"
        ) from error
