"""Immutable values. A value that is put, passed or returned is frozen once, and opened again for every receiver.

- Arrays are copied into read-only memory once; all receivers share them.
- Lists and dicts are rebuilt for each receiver around the shared arrays.
- Structs of plain values are copied.
- Any other object is pickled once, with its arrays out of band (protocol 5), and unpickled for each receiver on the same
  read-only memory. So a data set that is put once is stored once.
- If the class of such an object sets ``immutable``, all receivers share one unpickled copy.
"""

from __future__ import annotations

from copy import copy
from operator import is_
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.call import nbytes
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.pickling import PickleBuffer, pickled, pickled_by_value, unpickled

_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes, range, type(...)})


class Packed:
    """A pickled object."""

    __slots__ = ("buffers", "data", "nbytes")

    def __init__(self, value: Any) -> None:
        views: list[PickleBuffer] = []
        try:
            self.data = pickled(value, protocol=5, buffer_callback=views.append)
        except Exception:  # pickle may raise anything; a class defined in a function is valid and pickled by value
            self.data = _pickled_by_value(value, views)
        self.buffers = [bytes(view) for view in views]
        own = getattr(value, "nbytes", None)
        self.nbytes = own if isinstance(own, int) else sum(map(len, self.buffers)) or 8

    def open(self) -> Any:
        """Return a new object that shares the read-only memory."""
        return unpickled(self.data, buffers=self.buffers)


def _pickled_by_value(value: Any, views: list[PickleBuffer]) -> bytes:
    views.clear()
    try:
        return bytes(pickled_by_value(value, protocol=5, buffer_callback=views.append))
    except Exception as error:
        raise ConfigurationError(
            f"a {type(value).__name__} cannot travel between actors, because it cannot be pickled: {error}"
        ) from error


class Stored:
    """A frozen value.

    Attributes
    ----------
    value : the result of `freeze`.
    shared : whether all receivers may use ``value`` itself.
    nbytes : size of the value in a message, in bytes.
    """

    __slots__ = ("nbytes", "shared", "value")

    def __init__(self, value: Any) -> None:
        kind = type(value)
        self.value: Any
        if kind is np.ndarray and not value.dtype.hasobject:  # the hot path
            self.value, self.shared, self.nbytes = frozen_array(value), True, value.nbytes
        elif kind is Encoded:
            self.value, self.shared = _frozen_message(value)
            self.nbytes = value.nbytes
        else:
            self.value, self.shared = freeze(value)
            self.nbytes = nbytes(self.value)
            if type(self.value) is Packed and getattr(kind, "immutable", False):
                self.value, self.shared = self.value.open(), True

    def open(self) -> Any:
        """Return the value for one receiver; arrays in it are read-only."""
        return self.value if self.shared else thaw(self.value)


def frozen_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return ``array`` if no code can write to its memory any more, else a read-only copy."""
    if not array.flags.writeable:
        owner = array.base if isinstance(array.base, np.ndarray) else array
        memory: Any = owner.base
        if not owner.flags.writeable and (memory is None or type(memory) is bytes):
            return array
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def freeze(value: Any) -> tuple[Any, bool]:
    """Return (frozen, shared): an immutable form of ``value``, and whether all receivers may use it without a copy."""
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return frozen_array(value), True
    if kind in _IMMUTABLE or (isinstance(value, np.generic) and not isinstance(value, np.void | np.object_)):
        return value, True
    if kind is tuple:
        parts = [freeze(part) for part in value]
        return tuple(part for part, _ in parts), all(shared for _, shared in parts)
    if kind is list:
        return [freeze(part)[0] for part in value], False
    if kind is dict and all(type(key) in _IMMUTABLE for key in value):
        return {key: freeze(part)[0] for key, part in value.items()}, False
    if kind is Encoded:
        return _frozen_message(value)
    if isinstance(value, msgspec.Struct):
        values = msgspec.structs.astuple(value)
        if _IMMUTABLE.issuperset(map(type, values)) or all(map(_fixed, values)):
            return (value, True) if kind.__struct_config__.frozen else (copy(value), False)
    return Packed(value), False


def _frozen_message(message: Encoded) -> tuple[Encoded, bool]:
    arrays = tuple(map(frozen_array, message.arrays))
    if not message.meta and all(map(is_, arrays, message.arrays)):
        return message, True
    frozen = Encoded(message.codec, message.size, arrays, dict(message.meta))
    frozen.plain = message.plain
    return frozen, not message.meta


def _fixed(part: Any) -> bool:
    """Return whether a part of a value is already immutable."""
    frozen, shared = freeze(part) if type(part) is not np.ndarray else (None, False)
    return shared and frozen is part


def thaw(frozen: Any) -> Any:
    """Return a receiver's own containers around what `freeze` made; arrays stay shared and read-only."""
    kind = type(frozen)
    if kind is Packed:
        return frozen.open()
    if kind is tuple or kind is list:
        return kind(map(thaw, frozen))
    if kind is dict:
        return {key: thaw(part) for key, part in frozen.items()}
    if kind is Encoded:
        return Encoded(frozen.codec, frozen.size, frozen.arrays, dict(frozen.meta))
    if isinstance(frozen, msgspec.Struct):
        return copy(frozen)
    return frozen
