"""Values of files as text of an HTML page."""

from __future__ import annotations

from html import escape
from typing import Any

_MAX_CHARACTERS = 2000


def safe_text(value: Any) -> str:
    """Return a value as safe HTML text of bounded length."""
    text = str(value).encode("utf-8", "replace").decode()
    return escape(text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…")
