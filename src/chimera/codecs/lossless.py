"""Lossless compression of the messages of any codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Curvature, State, Table
from chimera.codecs.envelope import decode_parts, header_of, read_header, weight_of
from chimera.codecs.fields import array, count_arrays, output_for
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_SPARE = 1 << 20  # bytes that a message may hold in any case


@CODECS.register("lossless")
class Lossless(Codec):
    """Collet and Kucherawy, 2021: Zstandard Compression (RFC 8878). Any codec, with compressed messages.

    ``lossless = true`` in the table of a codec does the same.

    Parameters
    ----------
    codec : the codec, by name or as a table; default ``identity``.
    level : compression level, from 1 (fastest, default) to 19 (smallest).
    """

    on_device = True

    def __init__(self, *, codec: Table | Codec = "identity", level: int = 1) -> None:
        if not 1 <= level <= 19:
            raise ConfigurationError(f"level must be from 1 to 19, not {level}")
        self._inner, self._level = CODECS.inside("lossless", codec), level
        if isinstance(self._inner, Lossless):
            raise ConfigurationError("codec 'lossless': what is compressed already is not compressed again")

    @property
    def carries(self) -> bool:
        """Whether the codec does."""
        return self._inner.carries

    @property
    def makes_model(self) -> bool:
        """Whether the codec does."""
        return self._inner.makes_model

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode, and compress header and arrays together."""
        import zstandard

        message = self._inner.pack(vector, layout)
        header = header_of([message])
        parts: list[NDArray[Any]] = [np.array([header.size], np.uint32), header, *message.arrays]
        total = sum(part.nbytes for part in parts)
        stream = zstandard.ZstdCompressor(level=self._level).compressobj(size=total)
        pieces = [stream.compress(np.ascontiguousarray(part).data.cast("B")) for part in parts if part.size]
        packed = b"".join([*pieces, stream.flush()])
        return Encoded("lossless", len(vector), (np.frombuffer(packed, np.uint8),))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Decompress and decode."""
        count_arrays(encoded, 1)
        body = _decompressed(array(encoded, 0, np.uint8), 16 * encoded.size + _SPARE)
        length = int.from_bytes(body[:4], "little")
        if length > len(body) - 4:
            raise CodecError("the header of a lossless message is cut off")
        described = read_header(body[4 : 4 + length], without=("lossless",))
        if weight_of(described) != len(body) - 4 - length:
            raise CodecError("the arrays of a lossless message are not as long as its header says")
        arrays, at = [], 4 + length
        for kind, count in (each for one in described for each in one.arrays):
            arrays.append(np.frombuffer(body, kind, count, at))
            at += arrays[-1].nbytes
        return decode_parts(described, arrays, output_for(encoded, out))

    def use_curvature(self, curvature: Curvature) -> None:
        """Pass the curvature to the codec."""
        self._inner.use_curvature(curvature)

    def reseed(self, seed: int) -> None:
        """Restart the random numbers with another seed."""
        self._inner.reseed(seed)

    def state(self) -> State:
        """Return the state of the codec."""
        return self._inner.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        self._inner.restore(state)


def _decompressed(packed: NDArray[np.uint8], at_most: int) -> bytes:
    """Return the decompressed bytes, if the frame states a length within the limit."""
    import zstandard

    try:
        size = zstandard.frame_content_size(packed.data)
        if not 4 <= size <= at_most:
            raise CodecError(f"a lossless message says that it holds {size} bytes; it may hold {at_most}")
        return zstandard.ZstdDecompressor().decompress(packed.data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"a lossless message cannot be decompressed: {error}") from error
