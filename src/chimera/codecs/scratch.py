"""Memory that a codec keeps from message to message, since fresh memory costs more than what is written to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Scratch:
    """Arrays by name; each is made anew only when its size or type changes."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of this name, shape (size,), holding anything."""
        found = self._arrays.get(name)
        if found is None or found.size != size or found.dtype != dtype:
            found = self._arrays[name] = np.empty(size, dtype)
        return found
