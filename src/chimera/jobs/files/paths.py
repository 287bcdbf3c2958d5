"""Validation of relative paths that a peer sent."""

from __future__ import annotations

import unicodedata
from pathlib import PureWindowsPath

from chimera.core.errors import ConfigurationError

MAX_FILES = 100_000
"""Maximum number of files of one job or one run."""
_CONTROL_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def check_path(path: str) -> None:
    """Check that a path stays below its folder, and that a terminal can show it unchanged.

    Raises
    ------
    ConfigurationError : the path leaves the folder or cannot be shown; the message names it.
    """
    if any(
        letter == "\\" or letter in _BIDIRECTIONAL or unicodedata.category(letter) in _CONTROL_CATEGORIES
        for letter in path
    ):
        raise ConfigurationError(f"the path {path!a} has a character that is not allowed in the path of a file")
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts)
        or len(path.encode()) > 2000
        or PureWindowsPath(path).drive
    ):
        raise ConfigurationError(f"the path {path!r} does not lead to a file below its folder")
