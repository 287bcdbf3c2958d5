"""Names of actors in options and files: a client is named, as in ``worker 3``, or numbered, as in ``3``."""

from __future__ import annotations

import re

CLIENTS = "worker *"
"""The pattern of the names of clients, unless an option sets another."""

_NUMBERED = re.compile(r"(.*) (\d{1,9})", re.DOTALL)


def full_name(given: str) -> str:
    """Return the name of the actor that a file names or numbers."""
    given = given.strip()
    return f"worker {int(given)}" if given.isascii() and given.isdigit() else given


def number_of(name: str, role: str) -> int | None:
    """Return n for ``<role> n``; None for other names."""
    found = _NUMBERED.fullmatch(name)
    return int(found[2]) if found is not None and found[1] == role else None
