"""Names and other texts of a comparison, escaped for its HTML page."""

from __future__ import annotations

import re
from html import escape
from typing import Any

WORKERS = "train.workers"  # if this setting varies, the page shows the speed-up
_MAX_CHARACTERS = 300


def safe(value: Any) -> str:
    """Return a value as HTML text of bounded length."""
    text = str(value).encode("utf-8", "replace").decode()
    return escape(text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…")


def cell_name(cell: str) -> str:
    """Return the name of a cell as HTML that wraps between its parts and not at hyphens."""
    parts = [part for part in re.split(r"(?<=:)|(?<=·) ", cell) if part]
    return "".join(f'<span class="part">{safe(part)}</span>{" " if part.endswith("·") else ""}' for part in parts)
