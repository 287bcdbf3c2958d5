"""Numbers with their nouns, such as ``1 worker`` and ``2 workers``."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number and the noun, such as ``1 worker`` or ``1,200 workers``; ``plural`` is by default the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
