"""Encoded messages, which codecs compute from vectors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

TYPES = {
    "BOOL": "|b1",
    "I8": "|i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
"""Element types by the names of the safetensors format: the types of arrays in messages and files."""

_NOTHING: Mapping[str, float] = MappingProxyType({})


class Encoded:
    """An encoded vector; immutable by convention.

    Attributes
    ----------
    codec : name of the codec that encoded it and decodes it.
    size : number of elements of the vector.
    arrays : the encoded data; uplink and downlink carry their bytes.
    meta : small scalars that decoding needs.
    nbytes : size of the message in bytes.
    plain : whether the only array is the vector itself, contiguous and of float32, as the codec in this process has
        found. (Of float64 if a master of REST nodes trains a linear model.) It then needs no check. The flag is not
        sent: received messages are checked.
    """

    __slots__ = ("arrays", "codec", "meta", "nbytes", "plain", "size")

    def __init__(
        self, codec: str, size: int, arrays: tuple[NDArray[Any], ...], meta: Mapping[str, float] | None = None
    ) -> None:
        self.codec, self.size, self.arrays, self.meta = codec, size, arrays, meta or _NOTHING
        self.plain = False
        packed: int = arrays[0].nbytes if len(arrays) == 1 else sum([array.nbytes for array in arrays])
        self.nbytes = packed + 8 * len(self.meta)

    @property
    def bits_per_element(self) -> float:
        """Measured bits of the message for each element of the vector; 0 for an empty vector."""
        return 8 * self.nbytes / self.size if self.size else 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoded, (self.codec, self.size, self.arrays, dict(self.meta))
