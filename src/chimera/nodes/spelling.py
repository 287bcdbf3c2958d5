"""How the values of settings are spelt; a ValueError says in two or three words what is wrong with one."""

from __future__ import annotations

import ast
import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Any

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")  # of a host name, RFC 1123


def parsed(value: Any) -> Any:
    """Return the list that a text spells, as JSON or as a Python literal."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("not a list") from None


def whole(value: Any) -> Any:
    """Return the value, unless it only looks like a whole number."""
    if isinstance(value, bool | float):  # pydantic would read True as 1
        raise ValueError("not a whole number")
    return value


def within(values: Sequence[int], lowest: int, highest: int) -> tuple[int, ...]:
    """Return the values, if there are any and all are within these bounds."""
    if not values or not all(lowest <= value <= highest for value in values):
        raise ValueError("out of range")
    return tuple(values)


def is_host(value: str) -> bool:
    """Whether it is an IP address or a host name."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        labels = value.removesuffix(".").split(".")
        return len(value) <= 253 and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    return True
