"""What a codec makes of a vector: the thing that travels."""

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
"""Element types by the names of the safetensors format: what arrays in messages and files are made of."""

_NOTHING: Mapping[str, float] = MappingProxyType({})


class Encoded:
    """A vector as a codec packed it; nobody changes it once it is made.

    Attributes
    ----------
    codec : the name of the codec that made it, and so of the one that decodes it.
    size : how many elements the vector had.
    arrays : the packed data; their bytes are what the uplink and the downlink carry.
    meta : small scalars that decoding needs.
    nbytes : what it weighs on the wire, in bytes.
    plain : whether the codec that made it, in this process, knows that its one array is the vector, a contiguous one of
        float32 (of float64 where a master of REST nodes trains a linear model), so that nobody here need look. It does not
        travel: what comes from elsewhere is looked at.
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
        """How many bits each element of the vector takes on the wire, as measured; 0 for an empty vector."""
        return 8 * self.nbytes / self.size if self.size else 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoded, (self.codec, self.size, self.arrays, dict(self.meta))
