"""Memory that a codec reuses between messages: allocating memory takes longer than writing to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chimera.core.device import empty, host_memory

_LINE = 64


class Scratch:
    """Arrays by name; an array is allocated again only if its size or type changes."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}

    def array(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return the array of this name, shape (size,), uninitialised and aligned to a cache line."""
        found = self._arrays.get(name)
        if not isinstance(found, np.ndarray) or found.size != size or found.dtype != dtype:
            found = self._arrays[name] = _aligned(size, np.dtype(dtype))
        return found

    def message(self, vector: Any, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return host memory for a part of the message of ``vector``; for a vector on a device, see `host_memory`."""
        if isinstance(vector, np.ndarray):
            return self.array(name, size, dtype)
        place = f"message {name}"
        found = self._arrays.get(place)
        if found is None or found.size != size or found.dtype != dtype:
            found = self._arrays[place] = host_memory(size, dtype, vector)
        return found

    def like(self, vector: Any, name: str, size: int, dtype: str) -> Any:
        """Return memory on the device of ``vector``: an array or a tensor."""
        if isinstance(vector, np.ndarray):
            return self.array(name, size, dtype)
        found = self._arrays.get(name)
        if isinstance(found, np.ndarray) or found is None or len(found) != size or found.device != vector.device:
            found = self._arrays[name] = empty(size, dtype, vector)
        return found


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    spare = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    begin = -spare.ctypes.data % _LINE
    return spare[begin : begin + size * dtype.itemsize].view(dtype)
