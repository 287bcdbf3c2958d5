"""The settings of a run as tables of the HTML report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chimera.report.safe_text import safe_text


def tables_of(settings: Mapping[str, Any]) -> str:
    """Return nested settings as one small table for each top-level table, plain values first."""
    if not settings:
        return ""
    plain = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    nested = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    parts = ([_settings("general", plain)] if plain else []) + [_settings(key, value) for key, value in nested.items()]
    return f'<div class="settings">{"".join(parts)}</div>'


def _settings(title: str, values: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><th>{_key(key)}</th><td>{safe_text(value)}</td></tr>" for key, value in _flat(values))
    return f"<table><caption>{safe_text(title)}</caption><tbody>{rows}</tbody></table>"


def _key(key: str) -> str:
    """Return a key that a narrow column breaks after an underscore or a period."""
    return re.sub(r"([_.])", r"\1<wbr>", safe_text(key))


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            pairs += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            pairs.append((f"{prefix}{key}", str(value).lower()))
        elif isinstance(value, list | tuple):
            pairs.append((f"{prefix}{key}", ", ".join(map(str, value))))
        else:
            pairs.append((f"{prefix}{key}", str(value)))
    return pairs
