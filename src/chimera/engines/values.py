"""How a value lies in a block: a description, and behind it the bytes of its arrays, which readers use in place."""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.engines.shared_memory import Lease, Memory

_ALIGN = 64
_HEAD = struct.Struct("qqq")
_PLACE = struct.Struct("qq")
_PICKLED, _ARRAY, _ENCODED = range(3)
_PLAIN = "biufc"  # kinds of element types whose bytes say everything


class Packed:
    """A value as a few bytes that describe it, and its array bytes, which still lie where they were.

    Attributes
    ----------
    nbytes : the size of the block it needs.
    array_bytes : how much of that is array data.
    """

    __slots__ = ("array_bytes", "buffers", "form", "nbytes", "stream")

    def __init__(self, value: Any) -> None:
        self.buffers: list[memoryview] = []
        if type(value) is np.ndarray and _is_plain(value):  # what travels most needs no pickle
            self.form, self.stream = _ARRAY, marshal.dumps(_described([value], self.buffers))
        elif type(value) is Encoded and all(map(_is_plain, value.arrays)):
            described = _described(value.arrays, self.buffers)
            self.form = _ENCODED
            self.stream = marshal.dumps((value.codec, value.size, described, dict(value.meta)))
        else:
            self.form, self.stream = _PICKLED, _dumps(value, self.buffers)
        self.array_bytes = sum(buffer.nbytes for buffer in self.buffers)
        at = _HEAD.size + _PLACE.size * len(self.buffers) + len(self.stream)
        for buffer in self.buffers:
            at = _aligned(at) + buffer.nbytes
        self.nbytes = at

    def write(self, block: NDArray[np.uint8]) -> None:
        """Copy everything into ``block``, shape (nbytes,): the one copy that a value costs."""
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


def unpack(memory: Memory, actor: int, offset: int, nbytes: int, release: Callable[[], None]) -> Any:
    """Return the value in a block; its arrays are read-only views, and ``release`` is called when the last of them goes."""
    lease = memory.block(actor, offset, nbytes).view(Lease)
    lease.release = release
    view = memoryview(lease).toreadonly()  # type: ignore[arg-type]
    form, count, length = _HEAD.unpack_from(view, 0)
    head = _HEAD.size + _PLACE.size * count
    places = [_PLACE.unpack_from(view, _HEAD.size + i * _PLACE.size) for i in range(count)]
    buffers = [view[at : at + size] for at, size in places]
    stream = view[head : head + length]
    if form == _PICKLED:
        return pickle.loads(stream, buffers=buffers)
    if form == _ARRAY:
        return _arrays(marshal.loads(stream), buffers)[0]
    codec, size, described, meta = marshal.loads(stream)
    return Encoded(codec, size, tuple(_arrays(described, buffers)), meta)


def _is_plain(array: NDArray[Any]) -> bool:
    return type(array) is np.ndarray and array.dtype.kind in _PLAIN and array.flags.c_contiguous


def _described(arrays: Sequence[NDArray[Any]], buffers: list[memoryview]) -> list[tuple[str, tuple[int, ...]]]:
    """Return type and shape of each array, and put its bytes into ``buffers``."""
    buffers.extend(memoryview(array.reshape(-1).view(np.uint8)) for array in arrays)  # type: ignore[arg-type]
    return [(array.dtype.str, array.shape) for array in arrays]


def _arrays(described: list[tuple[str, tuple[int, ...]]], buffers: list[memoryview]) -> list[NDArray[Any]]:
    pairs = zip(described, buffers, strict=True)
    return [np.frombuffer(buffer, dtype).reshape(shape) for (dtype, shape), buffer in pairs]


def _dumps(value: Any, buffers: list[memoryview]) -> bytes:
    """Pickle, by value where a class cannot be imported elsewhere; array bytes go to ``buffers``."""
    out: list[pickle.PickleBuffer] = []
    try:
        stream = pickle.dumps(value, 5, buffer_callback=out.append)
        by_value = b"__main__" in stream  # whatever lives in the driver's script is not importable in an actor
    except (pickle.PicklingError, AttributeError, TypeError):
        by_value = True
    if by_value:
        out.clear()
        try:
            stream = cloudpickle.dumps(value, 5, buffer_callback=out.append)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            kind = type(value).__name__
            raise ConfigurationError(f"a value of type {kind} cannot travel to another process: {error}") from error
    buffers.extend(buffer.raw() for buffer in out)
    return stream


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN
