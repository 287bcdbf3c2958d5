"""Reading of TOML that another user may have written."""

from __future__ import annotations

import tomllib
from typing import Any


def read_toml(text: str) -> dict[str, Any]:
    """Return the tables of a document.

    Raises
    ------
    ValueError : it is not TOML (`tomllib.TOMLDecodeError`), or its values are nested too deeply or are too long.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
