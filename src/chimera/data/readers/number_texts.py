"""Columns of texts that contain numbers in another notation, or numbers and marks for missing values."""

from __future__ import annotations

import re
from collections.abc import Collection

MISSING = {"", "?", "-", "--", ".", "*", "na", "n/a", "#n/a", "nan", "null", "missing"}
"""Marks for missing values, in small letters."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")  # linear in the length of a hostile text
_OTHER_NOTATION = re.compile(r"[$€£]?\s?[+-]?(\d{1,3}(,\d{3})+(\.\d+)?|\d+,\d+|\d+(\.\d+)?)\s?[%$€£]?")
_MANY = 20  # numbers; fewer may be categories, such as "0", "1", "2", "3+"


def odd_among_numbers(texts: Collection[str]) -> str | None:
    """Return the first text that is not a number in a column of numbers; None if the texts are categories.

    In a column of numbers, the other texts are marks for missing values, or numbers with a thousands separator, a decimal
    comma, a currency or a percent sign. In a column of more than `_MANY` numbers, they may be any texts, if they are fewer.
    """
    others = [text for text in texts if not _NUMBER.fullmatch(text.strip())]
    marks = sum(text.strip().lower() in MISSING for text in others)
    notations = sum(_OTHER_NOTATION.fullmatch(text.strip()) is not None for text in others)
    numbers = len(texts) - len(others)
    are_numbers = marks + notations == len(others) and numbers + notations > 0
    return others[0] if others and (are_numbers or numbers > max(_MANY, len(others))) else None
