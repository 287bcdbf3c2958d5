"""Plug-ins as users give them: a name, a mapping with options, or an object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry

T = TypeVar("T")
Named: TypeAlias = str | Mapping[str, Any]
"""A plug-in's name, or a mapping with ``name`` and options."""


def named(plugin: Named) -> tuple[str, dict[str, Any]]:
    """Return name and options.

    Raises
    ------
    ConfigurationError : it is neither a name nor a mapping, or the mapping has no name.
    """
    if isinstance(plugin, str):
        return plugin, {}
    if not isinstance(plugin, Mapping):
        raise ConfigurationError(f"{plugin!r} is neither a name nor a table")
    options = dict(plugin)
    if not isinstance(name := options.pop("name", None), str):
        raise ConfigurationError(f"a table with the keys {', '.join(map(repr, plugin)) or 'none'} needs a 'name'")
    return name, options


def uplink_and_downlink(codec: Named) -> tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]:
    """Return name and options of the codecs of uplink and downlink; the latter is the option ``downlink`` of the former."""
    if not isinstance(codec, str | Mapping):
        raise ConfigurationError(
            f"codec {label(codec)} is neither a name nor a table: each sender needs a codec object of its own"
        )
    name, options = named(codec)
    downlink = options.pop("downlink", "identity")
    if not isinstance(downlink, str | Mapping):
        raise ConfigurationError(f"codec {name!r}, option 'downlink': {downlink!r} is neither a name nor a table")
    return (name, options), named(downlink)


def instantiate(registry: Registry[T], plugin: Named | T, kind: Any) -> T:
    """Create a plug-in from its name and options; return an object as it is.

    Raises
    ------
    ConfigurationError : the name or an option is wrong, or the object is not of type ``kind`` (its class, for example).
    """
    one = registry.create(*named(plugin)) if isinstance(plugin, str | Mapping) else plugin
    if isinstance(one, type) or not isinstance(one, kind):
        of_it = f"an object of it, {one.__name__}(...)" if isinstance(one, type) else "a name, a table or an object"
        raise ConfigurationError(f"{label(plugin)} is not a {registry.kind}: give {of_it}")
    return one


def nodes_own_data(engine: Any) -> bool:
    """Return whether the nodes of an engine, given by name, table or object, have data of their own."""
    kind: Any = ENGINES.find(named(engine)[0]).factory if isinstance(engine, str | Mapping) else engine
    return bool(getattr(kind, "nodes_own_data", False))


def label(plugin: Any) -> str:
    """Return the name of a plug-in for figures and folders; without the folder of ``some/file.py:name``."""
    if isinstance(plugin, str | Mapping):
        file, colon, attribute = named(plugin)[0].rpartition(":")
        return f"{Path(file).name}{colon}{attribute}"
    return str(getattr(plugin, "name", None) or getattr(plugin, "__name__", type(plugin).__name__))
