"""The differences between the settings of a resumed run and those at its start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chimera.core.toml import read_toml

_MAX_CHANGES = 8
_MAX_CHARACTERS = 40
_KEY = re.compile(r"[\w.-]{1,80}", re.ASCII)


def changed_settings(before: str, after: str) -> str:
    """Return the changes between two experiment files as one line, such as ``train.rounds 10 → 20``; empty without any.

    Another user may have written the earlier file. If that file is not TOML, nothing is compared.
    """
    try:
        old = dict(_leaves(read_toml(before)))
    except ValueError:
        return ""
    new = dict(_leaves(read_toml(after)))
    keys = [key for key in dict.fromkeys([*new, *old]) if old.get(key) != new.get(key) and _KEY.fullmatch(key)]
    changes = [f"{key} {_shown(old.get(key))} → {_shown(new.get(key))}" for key in keys]
    more = [f"{len(changes) - _MAX_CHANGES} more"] if len(changes) > _MAX_CHANGES else []
    return ", ".join([*changes[:_MAX_CHANGES], *more])


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."
