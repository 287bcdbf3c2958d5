"""Messages that explain to users why a value is invalid."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

_PLACE = re.compile(r" - at `\$([.\w]*)`")


def validation_message(error: msgspec.ValidationError, hint: Any) -> str:
    """Return msgspec's message about a value that is not a ``hint``, with the allowed words if there are a few."""
    message = str(error)
    place = _PLACE.search(message)
    for name in place[1].split(".")[1:] if place else ():
        hint = typing.get_type_hints(hint).get(name, Any) if isinstance(hint, type) else Any
    words = ", ".join(map(repr, _words(hint))) if message.startswith("Invalid enum value") else ""
    message = (
        _PLACE.sub(lambda found: f", for {found[1][1:]}" if found[1] else "", message)
        .replace(" | null", "")
        .replace("`object`", "table")
        .replace("`", "")
    )
    return f"{message}; it may be {words}" if words else message


def _words(hint: Any) -> Iterator[Any]:
    """Yield the values of all literals in a type."""
    for part in typing.get_args(hint):
        if typing.get_origin(hint) is typing.Literal:
            yield part
        else:
            yield from _words(part)
