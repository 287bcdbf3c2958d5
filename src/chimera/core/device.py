"""Vectors on a device: torch tensors in place of NumPy arrays, and all copies between device and host.

Code for vectors on any device uses only `len`, slices, operators, and functions that both NumPy and torch have, see
`namespace`. Memory of a device is separate from that of the host, even if the device is the CPU: each transfer is a copy.
"""

from __future__ import annotations

import contextlib
import importlib
import weakref
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LOCKED_BYTES = 1 << 20  # locking takes long, and shorter copies gain little
_PLAIN: tuple[Literal["C", "W"], ...] = ("C", "W")  # the memory layout that torch accepts


def on_host(vector: Any) -> bool:
    """Return whether a vector is a NumPy array."""
    return isinstance(vector, np.ndarray)


def namespace(vector: Any) -> Any:
    """Return the module with functions for this vector: NumPy or torch."""
    return np if isinstance(vector, np.ndarray) else importlib.import_module("torch")


def empty(size: int, dtype: str, like: Any) -> Any:
    """Return memory for ``size`` elements on the device of ``like``; ``dtype`` is a name, such as ``int64``."""
    if on_host(like):
        return np.empty(size, dtype)
    torch = namespace(like)
    return torch.empty(size, dtype=getattr(torch, dtype), device=like.device)


def host_memory(size: int, dtype: DTypeLike, like: Any) -> NDArray[Any]:
    """Return uninitialised memory on the host for copies from the device of ``like``.

    For a GPU it is page-locked: copies to it are about five times as fast. Locking takes long, so callers reuse the memory.
    """
    if on_host(like) or like.device.type != "cuda":
        return np.empty(size, dtype)
    torch, kind = namespace(like), np.dtype(dtype)
    locked: NDArray[Any] = torch.empty(size * kind.itemsize, dtype=torch.uint8, pin_memory=True).numpy()
    return locked.view(kind)


def page_lock(array: NDArray[Any], like: Any) -> None:
    """Page-lock an array while it exists, if ``like`` is on a GPU. Without effect if the array is small or CUDA refuses."""
    if on_host(like) or like.device.type != "cuda" or array.nbytes < _LOCKED_BYTES:
        return
    torch, address = namespace(like), array.ctypes.data
    with torch.cuda.device(like.device):  # otherwise each process would get a context on the first GPU
        locked = int(torch.cuda.cudart().cudaHostRegister(address, array.nbytes, 0)) == 0
    if locked:
        weakref.finalize(array, _unlock, address, like.device).atexit = False
    else:
        with contextlib.suppress(RuntimeError):  # the next operation raises the error that CUDA keeps
            torch.zeros(1, device=like.device)


def _unlock(address: int, device: Any) -> None:
    torch = importlib.import_module("torch")
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


def arange(size: int, like: Any) -> Any:
    """Return the numbers from 0 to ``size - 1``, int64, on the device of ``like``."""
    return np.arange(size) if on_host(like) else namespace(like).arange(size, device=like.device)


def copy_of(vector: Any) -> Any:
    """Return a copy on the same device."""
    return vector.copy() if on_host(vector) else vector.clone()


def to_host(vector: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a vector as an array: itself if it is one, else a copy, in ``out`` if given."""
    if on_host(vector):
        return vector  # type: ignore[no-any-return]
    if out is None:
        out = np.empty(tuple(vector.shape), str(vector.dtype).removeprefix("torch."))
    _as_tensor(out).copy_(vector)
    return out


def to_device_of(array: Any, vector: Any) -> Any:
    """Return an array or tensor on the device of ``vector``: itself if it is there, else a copy."""
    if on_host(vector):
        return to_host(array)
    if on_host(array):
        return _as_tensor(np.require(array, requirements=_PLAIN)).to(vector.device, copy=True)
    return array.to(vector.device)


def copy_to(source: Any, target: Any) -> None:
    """Copy one vector over another of the same length, on any devices."""
    if isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
        target[:] = source
    elif on_host(target):
        to_host(source, target)
    else:
        target.copy_(_as_tensor(np.require(source, requirements=_PLAIN)) if on_host(source) else source)


def _as_tensor(array: NDArray[Any]) -> Any:
    """Return a tensor that views an array; torch warns about read-only ones."""
    return importlib.import_module("torch").from_numpy(array)
