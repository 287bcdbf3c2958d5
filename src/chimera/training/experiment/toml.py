"""A writer for TOML, which the standard library can only read."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any


def dump_toml(tables: Mapping[str, Any]) -> str:
    """Return ``tables`` as a TOML document. Each mapping becomes a table; nested tables follow their parent.

    None values are omitted. A value that TOML cannot represent becomes a comment with its type, so that readers notice it.
    """
    lines: list[str] = []
    for name, value in tables.items():
        lines += _table((name,), value) if isinstance(value, Mapping) else [_comment(f"[{name}]", value), ""]
    return "\n".join(lines)


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    lines, below = [f"[{'.'.join(map(_key, path))}]"], []
    for key, value in table.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            below += _table((*path, key), value)
            continue
        try:
            lines.append(f"{_key(key)} = {literal(value)}")
        except TypeError:
            lines.append(_comment(_key(key), value))
    return [*lines, "", *below]


def _comment(what: str, value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f'# {what} was a Python object of type {kind}; to run this file, name it: "package.module:name" or "file.py:name"'


def _key(key: object) -> str:
    """Return a key; TOML has texts only, so a number becomes one, as in JSON."""
    key = str(key)
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else literal(key)


def literal(value: Any) -> str:
    """Return a value as a TOML literal of one line.

    Raises
    ------
    TypeError : TOML cannot represent the value.
    """
    if isinstance(value, str | Path):
        text = json.dumps(str(value), ensure_ascii=False)
        return text.replace("\x7f", "\\u007f")  # allowed in JSON, not in TOML
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(k)} = {literal(v)}' for k, v in value.items())}}}"
    raise TypeError(type(value).__name__)
