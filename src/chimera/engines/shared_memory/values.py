"""Layout of a value in a block of memory: a description, then the bytes of its arrays, which readers use in place."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.pickling import (
    PickleBuffer,
    PicklingError,
    marshalled,
    pickled,
    pickled_by_value,
    unmarshalled,
    unpickled,
)
from chimera.engines.shared_memory.memory import Lease

_ALIGN = 64
_HEAD = struct.Struct("qqq")
_PLACE = struct.Struct("qq")
_PICKLED, _ARRAY, _ENCODED = range(3)
_PLAIN = "biufc"  # kinds of element types that are fully described by their bytes


class Packed:
    """A value prepared for writing: a short description, and views of its array bytes, which are not copied yet.

    Attributes
    ----------
    nbytes : size of the block that the value needs, in bytes.
    array_bytes : bytes of array data among them.
    """

    __slots__ = ("array_bytes", "buffers", "form", "nbytes", "stream")

    def __init__(self, value: Any) -> None:
        self.buffers: list[memoryview] = []
        kind = type(value)
        if kind is np.ndarray and _is_plain(value):  # the most frequent value needs no pickle
            self.form, self.stream = _ARRAY, marshalled(_described((value,), self.buffers))
        elif kind is Encoded and all(map(_is_plain, value.arrays)):
            described = _described(value.arrays, self.buffers)
            self.form = _ENCODED
            self.stream = marshalled((value.codec, value.size, described, dict(value.meta)))
        else:
            self.form, self.stream = _PICKLED, _dumps(value, self.buffers)
        at, array_bytes = _HEAD.size + _PLACE.size * len(self.buffers) + len(self.stream), 0
        for buffer in self.buffers:
            at, array_bytes = _aligned(at) + buffer.nbytes, array_bytes + buffer.nbytes
        self.nbytes, self.array_bytes = at, array_bytes

    def write(self, block: NDArray[np.uint8]) -> None:
        """Copy the value into ``block``, shape (nbytes,). This is the only copy of a value."""
        target = memoryview(block)  # type: ignore[arg-type]
        _HEAD.pack_into(target, 0, self.form, len(self.buffers), len(self.stream))
        head = _HEAD.size + _PLACE.size * len(self.buffers)
        at = head + len(self.stream)
        target[head:at] = self.stream
        for i, buffer in enumerate(self.buffers):
            at = _aligned(at)
            _PLACE.pack_into(target, _HEAD.size + i * _PLACE.size, at, buffer.nbytes)
            target[at : at + buffer.nbytes] = buffer
            at += buffer.nbytes


def is_plain(value: Any) -> bool:
    """Return whether a value is an array or an encoded vector that can be stored without pickle."""
    return _is_plain(value) or (type(value) is Encoded and all(map(_is_plain, value.arrays)))


def unpack(block: NDArray[np.uint8], release: Callable[[], None] | None) -> Any:
    """Return the value in a block. Its arrays are read-only views; ``release`` is called when the last view is deleted."""
    lease = block.view(Lease)
    lease.flags.writeable = False
    lease.release = release
    view = memoryview(lease)  # type: ignore[arg-type]
    form, count, length = _HEAD.unpack_from(view)
    head = _HEAD.size + _PLACE.size * count
    places = [_PLACE.unpack_from(view, at) for at in range(_HEAD.size, head, _PLACE.size)]
    return opened(form, view[head : head + length], [view[at : at + size] for at, size in places])


def opened(form: int, stream: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Return the value of a `Packed`, by its form, its description, and the bytes of its arrays, which are used in place."""
    if form == _PICKLED:
        return unpickled(stream, buffers=buffers)
    if form == _ARRAY:
        return _arrays(unmarshalled(stream), buffers)[0]
    codec, size, described, meta = unmarshalled(stream)
    return Encoded(codec, size, tuple(_arrays(described, buffers)), meta)


def _is_plain(array: Any) -> bool:
    return type(array) is np.ndarray and array.dtype.kind in _PLAIN and array.flags.c_contiguous


def _described(arrays: Sequence[NDArray[Any]], buffers: list[memoryview]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the type and shape of each array, and append its bytes to ``buffers``."""
    buffers.extend([PickleBuffer(array).raw() for array in arrays])  # type: ignore[arg-type]
    return [(array.dtype.str, array.shape) for array in arrays]


def _arrays(described: list[tuple[str, tuple[int, ...]]], buffers: Sequence[memoryview]) -> list[NDArray[Any]]:
    """Return the arrays with these types and shapes, which view the buffers."""
    arrays = []
    for (dtype, shape), buffer in zip(described, buffers, strict=True):
        flat = np.frombuffer(buffer, dtype)
        arrays.append(flat if len(shape) == 1 else flat.reshape(shape))
    return arrays


def _dumps(value: Any, buffers: list[memoryview]) -> bytes:
    """Pickle ``value``, by value if a class cannot be imported elsewhere; append array bytes to ``buffers``."""
    out: list[PickleBuffer] = []
    try:
        stream = pickled(value, 5, buffer_callback=out.append)
        by_value = b"__main__" in stream  # actors cannot import what the driver's script defines
    except (PicklingError, AttributeError, TypeError):
        by_value = True
    if by_value:
        out.clear()
        try:
            stream = pickled_by_value(value, 5, buffer_callback=out.append)
        except (PicklingError, AttributeError, TypeError) as error:
            kind = type(value).__name__
            raise ConfigurationError(f"a value of type {kind} cannot travel to another process: {error}") from error
    buffers.extend(buffer.raw() for buffer in out)
    return stream


def _aligned(at: int) -> int:
    return (at + _ALIGN - 1) & -_ALIGN
