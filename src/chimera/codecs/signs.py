"""One bit for each element and two values for each tensor: the common part of `sign`, `onebit` and `binary`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from chimera.codecs.fields import array, bounds_of, finite, lengths_of, tensor_bounds
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import CHUNK, packed_size
from chimera.codecs.moments import ALL, Moments, moments
from chimera.codecs.piecewise import DecodeBuffer
from chimera.codecs.scratch import Scratch
from chimera.core.device import namespace
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

Values: TypeAlias = Callable[[Moments], tuple[float, float]]
"""Returns the value of a tensor's elements whose sign bit is clear, and the value of its other elements."""


def encode_signs(
    name: str, vector: Flat, layout: Layout, values: Values, scratch: Scratch, *, columns: int = ALL
) -> Encoded:
    """Encode the signs of a vector and the two values of each tensor. A negative zero counts as negative.

    ``columns`` names the moments that the values are computed from, see `moments`.
    """
    bounds = tensor_bounds(layout, len(vector))
    packed = scratch.message(vector, "packed", packed_size(len(vector), 1), np.uint8)
    found = moments(vector, bounds, signs=packed, columns=columns)
    both = np.array([values(each) for each in found], np.float64).reshape(-1)
    limit = np.finfo(np.float32).max
    return Encoded(name, len(vector), (packed, np.clip(both, -limit, limit).astype(np.float32), *lengths_of(bounds)))


def decode_signs(encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
    """Decode a message of `encode_signs`, piece by piece."""
    bounds = bounds_of(encoded, 2)
    packed = array(encoded, 0, np.uint8, packed_size(encoded.size, 1))
    values = finite(encoded, array(encoded, 1, np.float32, 2 * (len(bounds) - 1)), "values")
    k = kernels(buffer.memory)
    for low, high in buffer.cut(0, encoded.size):
        out = buffer.memory_of(low, high)
        for begin, end, tensor in _runs(bounds, low, high):
            part, run = packed[begin // 8 : begin // 8 + packed_size(end - begin, 1)], out[begin - low : end - low]
            if tensor is not None:
                k.unpack_signs(part, *values[2 * tensor : 2 * tensor + 2], run)
            else:
                k.unpack_signs(part, np.float32(1), np.float32(-1), run)
                _scale(run, bounds, begin, end, values)
        yield slice(low, high), out


def _runs(bounds: list[int], low: int, high: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield the bounds of whole chunks of one tensor and its number, or those of one chunk of several tensors and None."""
    while low < high:
        tensor = bisect_right(bounds, low) - 1
        after = bounds[tensor + 1]
        end = high if after >= high else after // CHUNK * CHUNK
        if end > low:
            yield low, end, tensor
        else:
            end = min(low // CHUNK * CHUNK + CHUNK, high)
            yield low, end, None
        low = end


def _scale(signs: Flat, bounds: list[int], begin: int, end: int, values: Flat) -> None:
    """Replace the signs of several tensors by the values of each tensor."""
    xp = namespace(signs)
    for i in range(bisect_right(bounds, begin) - 1, bisect_left(bounds, end)):
        piece = signs[max(bounds[i] - begin, 0) : bounds[i + 1] - begin]
        piece[:] = xp.where(piece > 0, xp.asarray(values[2 * i]), xp.asarray(values[2 * i + 1]))
