"""Relative paths that a peer has named: which of them a folder may take."""

from __future__ import annotations

import unicodedata
from pathlib import PureWindowsPath

from chimera.core.errors import ConfigurationError

MOST_FILES = 100_000
"""The number of files that travel at once."""
_CONTROLS = {"Cc", "Cs", "Zl", "Zp"}
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_path(path: str) -> None:
    """Refuse a path that is not one of a file below its folder, or that a terminal would not show as it is.

    Raises
    ------
    ConfigurationError : naming the path.
    """
    if any(letter == "\\" or letter in _BIDIRECTIONAL or unicodedata.category(letter) in _CONTROLS for letter in path):
        raise ConfigurationError(f"the path {path!a} has a character that the path of a file must not have")
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts)
        or len(path.encode()) > 2000
        or PureWindowsPath(path).drive
    ):
        raise ConfigurationError(f"the path {path!r} does not lead to a file below its folder")
