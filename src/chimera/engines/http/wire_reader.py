"""Reading of bytes of `chimera.engines.http.wire`. They may come from an attacker, and are checked before use."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.message import TYPES

OTHER_TYPES = re.compile(r"(<c(8|16)|[<|][US][1-9]\d{0,5}|>([iu][248]|f[248]|c(8|16)|U[1-9]\d{0,5}))")
PAD = "_"  # a tensor that pads the file to a multiple of 8 bytes, so that an embedded file is aligned
_MAX_HEADER_BYTES = 32 << 20
_MAX_DIMENSIONS = 64  # NumPy's own limit; the product of a longer shape is slow to compute
_MAX_SET_SIZE = 256  # integers with colliding hashes take quadratic time: a millisecond for this number
_MAX_TOTAL_SET_SIZE = 1 << 16  # in a whole body
MAX_VALUES = 1_000_000
"""Maximum number of arrays and other values in a call of an actor: each takes up to 200 bytes, many times its text."""


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_read_header = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_metadata = msgspec.json.Decoder(dict[str, str]).decode
_read_tensor = msgspec.json.Decoder(_Tensor).decode


class Budget:
    """The number of values that may still be created from a body, embedded ones included."""

    __slots__ = ("_left", "_left_in_sets", "_most")

    def __init__(self, values: int) -> None:
        self._most = self._left = values
        self._left_in_sets = _MAX_TOTAL_SET_SIZE

    def spend(self, values: int) -> None:
        """Count this many values.

        Raises
        ------
        DataError : there are too many.
        """
        self._left -= values
        if self._left < 0:
            raise DataError(f"the body has more than {self._most} values: send them as arrays")

    def spend_in_set(self, values: int) -> None:
        """Count a set with this many values.

        Raises
        ------
        DataError : there are too many, in this set or in all sets together.
        """
        self._left_in_sets -= values
        if values > _MAX_SET_SIZE or self._left_in_sets < 0:
            raise DataError(
                f"a set of {values} values: at most {_MAX_SET_SIZE} are allowed, and {_MAX_TOTAL_SET_SIZE} in all sets"
            )


def read_tensors(view: memoryview, budget: Budget) -> tuple[Any, dict[int, NDArray[Any]]]:
    """Return the structure, and the tensors by number; arrays are not copied."""
    if view.nbytes < 8:
        raise DataError(f"a body of {view.nbytes} bytes is no safetensors file")
    length = int.from_bytes(view[:8], "little")
    limit = min(view.nbytes - 8, _MAX_HEADER_BYTES)
    if length > limit:
        raise DataError(f"the header of a body of {view.nbytes} bytes has {length} bytes: at most {limit} are allowed")
    text = bytes(view[8 : 8 + length])
    budget.spend(text.count(b"{"))  # before they are created
    header = _read_header(text)
    structure = _read_metadata(header.pop("__metadata__"))["value"]
    budget.spend(structure.count(",") + structure.count("[") + structure.count("{"))
    data = view[8 + length :]
    tensors: dict[int, NDArray[Any]] = {}
    described = [(name, _read_tensor(raw)) for name, raw in header.items()]
    end = 0
    for name, tensor in sorted(described, key=lambda entry: entry[1].data_offsets):
        begin, last = tensor.data_offsets
        if begin != end or not begin <= last <= data.nbytes:
            where = f"it must begin at {end} and end within {data.nbytes}"
            raise DataError(f"tensor {name!r} lies at bytes {begin} to {last}, but {where}")
        end = last
        dtype = np.dtype(TYPES[tensor.dtype])
        if len(tensor.shape) > _MAX_DIMENSIONS:
            raise DataError(f"tensor {name!r} has {len(tensor.shape)} dimensions")
        if min(tensor.shape, default=0) < 0 or math.prod(tensor.shape) * dtype.itemsize != last - begin:
            raise DataError(f"tensor {name!r} of shape {tensor.shape} does not have {last - begin} bytes")
        if not name.startswith(PAD):
            tensors[int(name)] = np.frombuffer(data[begin:last], dtype).reshape(tensor.shape)
    if end != data.nbytes:
        raise DataError(f"{data.nbytes - end} bytes of the body belong to no tensor")
    return msgspec.json.decode(structure), tensors


class Reader:
    """Converts the plain form to a value. Each tensor is used once, so that a small body stays a small value.

    Parameters
    ----------
    tensors : tensors by number.
    budget : the budget of the whole body.
    opened : unpacks an embedded value.
    made : recreates a value of a registered type from its name and plain form.
    """

    def __init__(
        self,
        tensors: dict[int, NDArray[Any]],
        budget: Budget,
        opened: Callable[[memoryview], Any],
        made: Callable[[str, Any], Any],
    ) -> None:
        self._tensors, self._budget, self._opened, self._made = tensors, budget, opened, made

    def value(self, plain: Any) -> Any:
        """Return the value of a part of the structure."""
        kind = type(plain)
        if kind is list:
            return [self.value(part) for part in plain]
        if kind is not dict:
            return plain
        ((tag, inner),) = plain.items()
        if tag == "a":
            return self._array(inner)
        if tag == "d":
            return {key: self.value(part) for key, part in inner.items()}
        if tag == "t":
            return tuple([self.value(part) for part in inner])
        return self._rarer(tag, inner)

    def _rarer(self, tag: str, inner: Any) -> Any:
        if tag == "p":
            return self._opened(memoryview(self._array(inner)))  # type: ignore[arg-type]
        if tag == "b":
            return self._array(inner).tobytes()
        if tag in ("s", "z"):
            self._budget.spend_in_set(len(inner))
            parts = [self.value(part) for part in inner]
            return set(parts) if tag == "s" else frozenset(parts)
        if tag == "f" or tag == "i":
            return float(inner) if tag == "f" else int(inner)
        if tag == "c":
            return complex(*[self.value(part) for part in inner])
        if tag == "n":
            return self._array(inner)[()]
        if tag == "r":
            name, content = inner
            return self._made(name, self.value(content))
        raise DataError(f"nothing is known of {tag!r}")

    def _array(self, place: Any) -> NDArray[Any]:
        if type(place) is int:
            return self._tensors.pop(place)
        index, name, shape = place
        if not OTHER_TYPES.fullmatch(name):
            raise DataError(f"no array is of type {name!r}")
        data, dtype = self._tensors.pop(index), np.dtype(name)
        if len(shape) > _MAX_DIMENSIONS or not all(type(length) is int and length >= 0 for length in shape):
            raise DataError(f"no array has the shape {shape!r:.100}")
        if math.prod(shape) * dtype.itemsize != data.nbytes:
            raise DataError(f"an array of type {name} and shape {shape} does not have {data.nbytes} bytes")
        return np.frombuffer(data, dtype).reshape(shape)
