"""Cells of tables that people open with a spreadsheet."""

from __future__ import annotations

from typing import Any

_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # the last four: of full width


def plain_cell(value: Any) -> Any:
    """Return a value as it may stand in a CSV file: a text that a spreadsheet would compute gets an apostrophe in front.

    Numbers, and texts that are numbers, such as ``-0.5``, stay as they are.
    """
    text = value if isinstance(value, str) else "" if value is None or isinstance(value, int | float) else str(value)
    if not text.lstrip(" ").startswith(_FORMULA):
        return value
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return value
