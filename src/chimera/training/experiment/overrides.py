"""Overrides of single values of an experiment: the path of a key, and the value at a path."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml
from chimera.training.plugin import named


def full_path(path: Sequence[str], engine: Any) -> list[str]:
    """Return the full path of a key. A table inside ``engine`` may be omitted, as in ``engine.bandwidth_bytes_s``."""
    if len(path) != 2 or path[0] != "engine" or not isinstance(engine, str | Mapping):
        return list(path)
    try:
        factory = ENGINES.find(named(engine)[0]).factory
        hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except (ConfigurationError, NameError, TypeError):  # an unusable engine, or hints that only type checkers see
        return list(path)
    found = [
        option
        for option, hint in hints.items()
        for kind in typing.get_args(hint)
        if dataclasses.is_dataclass(kind) and path[1] in (field.name for field in dataclasses.fields(kind))
    ]
    return ["engine", found[0], path[1]] if path[1] not in hints and len(found) == 1 else list(path)


def place(tables: dict[str, Any], path: Sequence[str], value: Any, what: str) -> None:
    """Set the value at ``path``. Tables on the way are copied; a plain name on the way becomes a table with that name.

    Parameters
    ----------
    what : name of the change in messages.
    """
    inner: dict[str, Any] = tables
    for i, part in enumerate(path[:-1]):
        below = inner.get(part)
        if isinstance(below, str):
            below = {"name": below}
        if below is not None and not isinstance(below, Mapping):
            raise ConfigurationError(f"{what}: {'.'.join(path[: i + 1])} is not a table")
        inner[part] = dict(below or {})
        inner = inner[part]
    inner[path[-1]] = value


def read_value(text: str) -> Any:
    """Return ``text`` parsed as a TOML value; unchanged if it is not valid TOML."""
    try:
        parsed = read_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text
