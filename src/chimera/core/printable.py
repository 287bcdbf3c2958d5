"""Texts of other programs and users, in a form that a terminal can show safely."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with a space in place of each control character, which a terminal would execute."""
    return "".join(character if character.isprintable() else " " for character in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines whose control characters are escaped, except tabs and ends of lines."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
