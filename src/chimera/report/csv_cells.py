"""CSV cells that are safe to open in a spreadsheet program."""

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
)  # the last four are full-width characters


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV file: a text that a spreadsheet would evaluate as a formula gets an apostrophe as prefix.

    Numbers, and texts that are numbers, such as ``-0.5``, are unchanged.
    """
    text = value if isinstance(value, str) else "" if value is None or isinstance(value, int | float) else str(value)
    if not text.lstrip(" ").startswith(_FORMULA):
        return value
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return value
