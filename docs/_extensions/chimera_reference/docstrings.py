"""Docstrings of the project, split into their summary, their text and the items of their sections.

Items are written ``name : meaning`` or ``name, other : meaning``, with further lines indented. Types stand in the signature.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SECTIONS = ("Parameters", "Attributes", "Raises", "Returns", "Yields", "Notes", "References", "Examples", "See Also")
_HEADING = re.compile(rf"^({'|'.join(SECTIONS)})\n-+$", re.MULTILINE)
_ITEM = re.compile(r"^(\*{0,2}[A-Za-z_][\w.*]*(?:, \*{0,2}[A-Za-z_][\w.*]*)*) : ", re.MULTILINE)
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
"""A name in single backticks."""


@dataclass(frozen=True)
class Item:
    """One item of a section.

    Attributes
    ----------
    names : the names that it describes.
    text : the meaning, as lines joined by a space; blocks of their own, such as lists, keep their lines.
    """

    names: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts.

    Attributes
    ----------
    summary : the first paragraph.
    text : the paragraphs after it, up to the first section.
    sections : the text of each section that has no items, by title.
    items : the items of each section that has them, by title.
    """

    summary: str
    text: str
    sections: Mapping[str, str]
    items: Mapping[str, tuple[Item, ...]]

    def described(self) -> dict[str, Item]:
        """Return the items of parameters and attributes, by name."""
        return {
            name: item
            for title in ("Attributes", "Parameters")
            for item in self.items.get(title, ())
            for name in item.names
        }


def parsed(text: str) -> Docstring:
    """Return a clean docstring, as of `inspect.getdoc`, in parts."""
    head, *rest = _HEADING.split(text)
    summary, _, body = head.strip().partition("\n\n")
    sections, items = {}, {}
    for title, content in zip(rest[::2], rest[1::2], strict=True):
        found = tuple(_items(content.strip("\n")))
        if found:
            items[title] = found
        else:
            sections[title] = content.strip()
    return Docstring(summary.strip(), body.strip(), sections, items)


def _items(content: str) -> Iterator[Item]:
    starts = [*_ITEM.finditer(content)]
    for place, start in enumerate(starts):
        end = starts[place + 1].start() if place + 1 < len(starts) else len(content)
        yield Item(tuple(start[1].split(", ")), inspect.cleandoc(content[start.end() : end]).strip())


@lru_cache(maxsize=4096)
def docstring_of(documented: Any) -> Docstring:
    """Return the docstring of a class or function itself, not one of a base class."""
    own = vars(documented).get("__doc__") if inspect.isclass(documented) else documented.__doc__
    return parsed(inspect.cleandoc(own or ""))
