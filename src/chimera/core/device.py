"""Vectors on a device: tensors of torch in place of NumPy arrays, and the one place where bytes cross to the host and back.

Code that takes a vector wherever it lies makes do with `len`, slices, operators, and those functions that NumPy and torch
both have, see `namespace`. What is on a device stays apart from the host's memory even where the device is the CPU: there
too each crossing is a copy.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_PLAIN: tuple[Literal["C", "W"], ...] = ("C", "W")  # memory as torch takes it


def on_host(vector: Any) -> bool:
    """Return whether a vector is a NumPy array."""
    return isinstance(vector, np.ndarray)


def namespace(vector: Any) -> Any:
    """Return the module whose functions take this vector: NumPy or torch."""
    return np if isinstance(vector, np.ndarray) else importlib.import_module("torch")


def empty(size: int, dtype: str, beside: Any) -> Any:
    """Return memory for ``size`` elements where the vector ``beside`` lies; ``dtype`` is a name, as ``int64``."""
    if on_host(beside):
        return np.empty(size, dtype)
    torch = namespace(beside)
    return torch.empty(size, dtype=getattr(torch, dtype), device=beside.device)


def count_up(size: int, beside: Any) -> Any:
    """Return the numbers from 0 to ``size - 1``, int64, where the vector ``beside`` lies."""
    return np.arange(size) if on_host(beside) else namespace(beside).arange(size, device=beside.device)


def copy_of(vector: Any) -> Any:
    """Return a copy, where the vector lies."""
    return vector.copy() if on_host(vector) else vector.clone()


def to_host(vector: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a vector as an array: itself if it is one, else a copy, in ``out`` if that is given."""
    if on_host(vector):
        return vector  # type: ignore[no-any-return]
    if out is None:
        out = np.empty(tuple(vector.shape), str(vector.dtype).removeprefix("torch."))
    _as_tensor(out).copy_(vector)
    return out


def beside(array: Any, vector: Any) -> Any:
    """Return an array or tensor where ``vector`` lies: itself if it is there, else a copy."""
    if on_host(vector):
        return to_host(array)
    if on_host(array):
        return _as_tensor(np.require(array, requirements=_PLAIN)).to(vector.device, copy=True)
    return array.to(vector.device)


def put(source: Any, target: Any) -> None:
    """Copy one vector over another of the same length, wherever they lie."""
    if isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
        target[:] = source
    elif on_host(target):
        to_host(source, target)
    else:
        target.copy_(_as_tensor(np.require(source, requirements=_PLAIN)) if on_host(source) else source)


def _as_tensor(array: NDArray[Any]) -> Any:
    """Return a tensor that views an array; torch warns of read-only ones."""
    return importlib.import_module("torch").from_numpy(array)
