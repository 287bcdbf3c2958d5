"""Messages inside a message: a header that describes them, followed by their arrays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import decode
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat

_TYPES = {"|u1": 1, "<u2": 2, "<u4": 4, "<f4": 4, "<i4": 4, "<i8": 8, "<f8": 8}

_MAX_DEPTH = 4


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()


class Described(msgspec.Struct, array_like=True):
    """The description of one message in a header: codec, size, meta data, and type and length of each array."""

    codec: str
    size: int
    meta: dict[str, float]
    arrays: list[tuple[str, int]]


_DECODER = msgspec.msgpack.Decoder(list[Described])


def header_of(messages: Sequence[Encoded]) -> NDArray[np.uint8]:
    """Return the header that describes the messages, shape (bytes,)."""
    described = [
        Described(m.codec, m.size, {k: float(v) for k, v in m.meta.items()}, [(a.dtype.str, a.size) for a in m.arrays])
        for m in messages
    ]
    return np.frombuffer(msgspec.msgpack.encode(described), np.uint8)


def read_header(header: Any, without: Sequence[str]) -> list[Described]:
    """Decode a header of `header_of`. Messages of the codecs ``without`` are not allowed."""
    try:
        found = _DECODER.decode(header)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise CodecError(f"the header of a message cannot be read: {error}") from error
    for each in found:
        if each.codec in without:
            raise CodecError(f"a message of the codec {each.codec!r} cannot be where this one is")
        if each.size < 0 or any(kind not in _TYPES or length < 0 for kind, length in each.arrays):
            raise CodecError("the header of a message holds a size or a type that cannot be")
    return found


def weight_of(described: Sequence[Described]) -> int:
    """Return the size of the arrays in bytes."""
    return sum(_TYPES[kind] * length for each in described for kind, length in each.arrays)


def decode_parts(described: Sequence[Described], arrays: Sequence[NDArray[Any]], out: Flat) -> Flat:
    """Decode messages one after another into ``out``; ``arrays`` holds the arrays of all messages."""
    if sum(each.size for each in described) != len(out):
        raise CodecError(f"the parts of a message do not add up to {len(out)} elements")
    if _nesting.depth >= _MAX_DEPTH:
        raise CodecError(f"messages lie inside messages more than {_MAX_DEPTH} deep")
    _nesting.depth += 1
    try:
        return _decode_each(described, arrays, out)
    finally:
        _nesting.depth -= 1


def _decode_each(described: Sequence[Described], arrays: Sequence[NDArray[Any]], out: Flat) -> Flat:
    begin = at = 0
    for each in described:
        own = tuple(arrays[at : at + len(each.arrays)])
        piece = out[begin : begin + each.size]
        found = decode(Encoded(each.codec, each.size, own, each.meta), each.size, piece)
        if found is not piece:
            np.copyto(piece, found)
        begin, at = begin + each.size, at + len(each.arrays)
    return out
