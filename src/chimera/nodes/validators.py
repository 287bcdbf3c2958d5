"""Validators of settings. They raise ValueError with a short reason."""

from __future__ import annotations

import ast
import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Any

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")  # a label of a host name, RFC 1123


def parse_list(value: Any) -> Any:
    """Parse a list from a text, as JSON or as a Python literal; return any other value unchanged."""
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


def strict_integer(value: Any) -> Any:
    """Return the value unless it is a bool or a float, which pydantic would convert to an integer."""
    if isinstance(value, bool | float):
        raise ValueError("not a whole number")
    return value


def within_bounds(values: Sequence[int], lowest: int, highest: int) -> tuple[int, ...]:
    """Return the values if there is at least one and all are within the bounds."""
    if not values or not all(lowest <= value <= highest for value in values):
        raise ValueError("out of range")
    return tuple(values)


def is_host(value: str) -> bool:
    """Return whether the value is an IP address or a host name."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        labels = value.removesuffix(".").split(".")
        return len(value) <= 253 and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    return True
