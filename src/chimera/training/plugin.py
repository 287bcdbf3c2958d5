"""A plug-in as users give it: by name, with options, or made already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry

T = TypeVar("T")
Named: TypeAlias = str | Mapping[str, Any]
"""A plug-in by name, or a mapping of ``name`` and its options."""


def named(plugin: Named) -> tuple[str, dict[str, Any]]:
    """Return name and options.

    Raises
    ------
    ConfigurationError : a mapping without a name.
    """
    if isinstance(plugin, str):
        return plugin, {}
    options = dict(plugin)
    if not isinstance(name := options.pop("name", None), str):
        raise ConfigurationError(f"{dict(plugin)!r} needs a 'name'")
    return name, options


def both_ways(codec: Named) -> tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]:
    """Return name and options of the codec of the uplink, and of that of the downlink: its table ``downlink``, or identity."""
    if not isinstance(codec, str | Mapping):
        raise ConfigurationError(
            f"codec {label(codec)} is neither a name nor a table, of which each sender makes its own"
        )
    name, options = named(codec)
    downlink = options.pop("downlink", "identity")
    if not isinstance(downlink, str | Mapping):
        raise ConfigurationError(f"codec {name!r}, option 'downlink': {downlink!r} is neither a name nor a table")
    return (name, options), named(downlink)


def made(registry: Registry[T], plugin: Named | T, kind: Any) -> T:
    """Return what a name and its options stand for, or the object itself.

    Raises
    ------
    ConfigurationError : a name or an option is wrong, or what there is, is not of the ``kind``, but its class, perhaps.
    """
    one = registry.create(*named(plugin)) if isinstance(plugin, str | Mapping) else plugin
    if isinstance(one, type) or not isinstance(one, kind):
        of_it = f"an object of it, {one.__name__}(...)" if isinstance(one, type) else "a name, a table or an object"
        raise ConfigurationError(f"{label(plugin)} is no {registry.kind}: give {of_it}")
    return one


def label(plugin: Any) -> str:
    """Return what a plug-in is called, in figures and folders."""
    if isinstance(plugin, str | Mapping):
        return named(plugin)[0]
    return str(getattr(plugin, "name", None) or getattr(plugin, "__name__", type(plugin).__name__))
