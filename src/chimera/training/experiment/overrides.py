"""Overrides of single values of an experiment: the path of a key, and the value at a path."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml
from chimera.training.plugin import named

_OF_PYTHON = {"True": True, "False": False}  # as texts, both would be true for a model of the user
_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""Numbers without a digit before or after the point, which TOML does not have."""
_OPENING = ("[", "{")


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
    """Return ``text`` parsed as a TOML value, or as a Boolean or number of Python; unchanged if it is none of these.

    Raises
    ------
    ConfigurationError : it begins as a list or a table, and is not valid TOML.
    """
    try:
        parsed = read_toml(f"value = {text}")
    except ValueError:
        if text[:1] in _OPENING:
            raise ConfigurationError(
                f'{text!r} is not valid TOML: write texts in quotes, as in ["a", "b"], and Booleans as true'
            ) from None
        return _OF_PYTHON[text] if text in _OF_PYTHON else float(text) if _NUMBER.fullmatch(text) else text
    return parsed["value"] if len(parsed) == 1 else text
