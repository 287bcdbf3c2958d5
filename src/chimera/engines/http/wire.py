"""Values as bytes of the safetensors format, for bodies of requests and answers. They contain no code and no pickle.

The arrays are the tensors of the file. The structure is a small JSON text in its metadata, under ``value``. Numbers, strings,
truth values, ``null`` and lists have their JSON form. Other values are objects with one key: ``{"a": 0}`` is tensor 0,
``{"d": {...}}`` a dictionary, ``{"t": [...]}`` a tuple. `_Writer` has the complete list, and
`chimera.engines.http.wire_reader` reads these forms. Any safetensors library can read and write such a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.message import TYPES, Encoded
from chimera.engines.http.wire_reader import MAX_VALUES, OTHER_TYPES, PAD, Budget, Reader, read_tensors

CONTENT_TYPE = "application/vnd.chimera+safetensors"

_NAMES = {dtype: name for name, dtype in TYPES.items()}
_ALIGN = 8


@dataclass(frozen=True)
class _Registered:
    type: type
    name: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


_by_type: dict[type, _Registered] = {}
_by_name: dict[str, _Registered] = {}


def register(type_: type, name: str, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any], /) -> None:
    """Register a type, so that values of exactly this type can be sent.

    Parameters
    ----------
    name : name of the type on the wire.
    to_plain : converts a value to types that can be sent already.
    from_plain : converts it back. Its input may come from an attacker: it must check the input, and execute no code from it.
    """
    entry = _Registered(type_, name, to_plain, from_plain)
    known = _by_name.get(name)
    if known is not None and known.type.__qualname__ != type_.__qualname__:
        raise ConfigurationError(f"two types are called {name!r} on the wire: {known.type.__name__}, {type_.__name__}")
    _by_type[type_] = _by_name[name] = entry


class Packed:
    """A packed value; it is embedded in other values without change.

    Attributes
    ----------
    data : the bytes from `pack`, or a view of them.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data

    def open(self) -> Any:
        """Return the value."""
        return unpack(self.data)


def pack(value: Any) -> bytes:
    """Return a value as bytes.

    Raises
    ------
    ConfigurationError : it contains something that cannot be sent.
    """
    writer = _Writer()
    try:
        structure = msgspec.json.encode(writer.plain(value)).decode()
    except RecursionError as error:
        raise ConfigurationError("a value that contains itself, or is nested very deeply, cannot travel") from error
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"a string that is no valid Unicode cannot travel: {error}") from error
    return writer.file(structure)


def unpack(data: bytes | bytearray | memoryview, *, open_inner: bool = True, max_values: int | None = None) -> Any:
    """Return the value of `pack`. Its arrays are read-only views of ``data``, which must not change.

    Parameters
    ----------
    open_inner : whether embedded `Packed` values are unpacked too, or returned packed.
    max_values : maximum number of values in a body, embedded ones included. Default: one per two bytes, at least a million;
        nested lists then take at most about twenty times the memory of the body.

    Raises
    ------
    DataError : the bytes do not have this form.
    """
    try:
        view = memoryview(data)
        most = max(MAX_VALUES, view.nbytes // 2) if max_values is None else max_values
        return _unpacked(view, Budget(most), open_inner)
    except DataError:
        raise
    except RecursionError as error:
        raise DataError("the body is nested too deeply") from error
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise DataError(f"the body is no value of Chimera's: {type(error).__name__}: {error}") from error


def _unpacked(data: memoryview, budget: Budget, open_inner: bool) -> Any:
    structure, tensors = read_tensors(data.toreadonly().cast("B"), budget)
    opened = (lambda inner: _unpacked(inner, budget, True)) if open_inner else Packed
    return Reader(tensors, budget, opened, _made).value(structure)


def _made(name: str, plain: Any) -> Any:
    """Recreate a value of a registered type."""
    if name not in _by_name:
        raise DataError(f"the type {name!r} is unknown here")
    return _by_name[name].from_plain(plain)


class _Writer:
    """Converts a value to its plain form, and collects its arrays."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, str, tuple[int, ...], memoryview]] = []  # alignment, type, shape, bytes

    def plain(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 63 else {"i": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"f": str(value)}
        if kind is np.ndarray:
            return {"a": self._array(value)}
        if kind is list:
            return [self.plain(part) for part in value]
        if kind is tuple:
            return {"t": [self.plain(part) for part in value]}
        if kind is dict:
            if not all(type(key) is str for key in value):
                raise ConfigurationError("a dictionary with keys that are not strings cannot travel over HTTP")
            return {"d": {key: self.plain(part) for key, part in value.items()}}
        return self._rarer(kind, value)

    def _rarer(self, kind: type, value: Any) -> Any:
        if kind is Packed:
            return {"p": self._bytes(value.data)}
        if kind in (bytes, bytearray):
            return {"b": self._bytes(value)}
        if kind in (set, frozenset):
            return {"s" if kind is set else "z": [self.plain(part) for part in value]}
        if kind is complex:
            return {"c": [self.plain(value.real), self.plain(value.imag)]}
        if kind in _by_type:
            entry = _by_type[kind]
            return {"r": [entry.name, self.plain(entry.to_plain(value))]}
        if isinstance(value, np.generic):
            return {"n": self._array(np.asarray(value))}
        raise ConfigurationError(
            f"a value of type {kind.__name__} cannot travel over HTTP: only numbers, text and arrays do"
        )

    def _bytes(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        return self._add(_ALIGN, "U8", (view.nbytes,), view)

    def _array(self, array: NDArray[Any]) -> Any:
        name = _NAMES.get(array.dtype.str)
        if name is None and not OTHER_TYPES.fullmatch(array.dtype.str):
            raise ConfigurationError(f"an array of type {array.dtype} cannot travel over HTTP")
        shape = array.shape
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array).reshape(shape)
        flat = memoryview(b"")
        if array.size:
            flat = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        if name is not None:
            return self._add(array.itemsize, name, shape, flat)
        return [self._add(array.dtype.alignment, "U8", (flat.nbytes,), flat), array.dtype.str, list(shape)]

    def _add(self, alignment: int, name: str, shape: tuple[int, ...], data: memoryview) -> int:
        self._arrays.append((alignment, name, shape, data))
        return len(self._arrays) - 1

    def file(self, structure: str) -> bytes:
        """Return everything; the data with the strictest alignment come first."""
        header: dict[str, Any] = {"__metadata__": {"value": structure}}
        parts: list[bytes | memoryview] = [b""]
        at = 0
        order = sorted(range(len(self._arrays)), key=lambda index: -self._arrays[index][0])
        for index in order:
            alignment, name, shape, data = self._arrays[index]
            if short := -at % min(alignment, _ALIGN):  # after embedded values, bytes or text
                header[f"{PAD}{index}"] = _described("U8", (short,), at, short)
                parts.append(b"\0" * short)
                at += short
            header[str(index)] = _described(name, shape, at, data.nbytes)
            parts.append(data)
            at += data.nbytes
        if short := -at % _ALIGN:
            header[PAD] = _described("U8", (short,), at, short)
            parts.append(b"\0" * short)
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % _ALIGN)
        parts[0] = len(text).to_bytes(8, "little") + text
        return b"".join(parts)


def _described(name: str, shape: tuple[int, ...], at: int, size: int) -> dict[str, Any]:
    return {"dtype": name, "shape": shape, "data_offsets": (at, at + size)}


def _encoded(plain: Mapping[str, Any]) -> Encoded:
    codec, size, arrays, meta = plain["codec"], plain["size"], tuple(plain["arrays"]), plain["meta"]
    numbers = all(type(value) in (int, float, bool) for value in meta.values())
    if not (type(codec) is str and type(size) is int and size >= 0 and numbers):
        raise DataError("an encoded vector has the name of a codec, a size and numbers")
    if not all(type(array) is np.ndarray for array in arrays):
        raise DataError("an encoded vector consists of arrays")
    return Encoded(codec, size, arrays, meta)


register(
    Encoded,
    "encoded",
    lambda value: {"codec": value.codec, "size": value.size, "arrays": list(value.arrays), "meta": dict(value.meta)},
    _encoded,
)
register(slice, "slice", lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts))
