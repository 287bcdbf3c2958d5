"""The error for an optimizer that refuses its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.data.readers.csv_file import is_number


def refusal(name: str, options: Mapping[str, Any], error: Exception) -> ConfigurationError:
    """Return the error for ``options`` that the optimizer ``name`` refused with ``error``.

    A number that was written as a text, such as ``0,01``, is named with its right form.
    """
    for key, value in options.items():
        point = value.strip().replace(",", ".") if isinstance(value, str) else ""
        known = is_number(point)
        if known or (point and key == "lr"):  # other options of a user's own class may be texts
            form = f"write {point}" if known else "give a number, such as 0.01"
            return ConfigurationError(f"the optimizer {name!r}, option {key!r}: {value!r} is not a number: {form}")
    return ConfigurationError(f"the optimizer {name!r} refuses its options: {error}")
