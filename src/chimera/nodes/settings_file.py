"""The file `chimera.toml`, whose table ``[nodes]`` holds settings of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml

FILE = Path("chimera.toml")
TABLE = "nodes"
MASTER_KEYS = ("master", "port", "options")  # further keys of the table: the master that `chimera nodes up` runs


def read_table() -> dict[str, Any]:
    """Return the table ``[nodes]`` of `chimera.toml` in the working folder; empty if there is none."""
    if not FILE.is_file():
        return {}
    try:
        table = read_toml(FILE.read_text(encoding="utf-8")).get(TABLE, {})
    except ValueError as error:
        raise ConfigurationError(f"{FILE} is not valid TOML: {error}") from None
    if not isinstance(table, dict):
        raise ConfigurationError(f"{FILE}: {TABLE} must be a table, [{TABLE}]")
    return table
