"""One bit an element, and two values a tensor: what `sign`, `onebit` and `binary` have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from chimera.codecs.fields import array, bounds_of, finite, lengths_of, room, tensor_bounds
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import packed_size
from chimera.codecs.moments import Moments, moments
from chimera.codecs.scratch import Scratch
from chimera.core.device import namespace
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

Values: TypeAlias = Callable[[Moments], tuple[float, float]]
"""Returns what stands for the elements of a tensor whose sign bit is clear, and what for the others."""


def encode_signs(
    name: str, vector: Flat, layout: Layout, values: Values, scratch: Scratch, *, brief: bool = False
) -> Encoded:
    """Pack the signs of a vector and the two values of each tensor. A negative zero counts as negative.

    With ``brief``, the values are to be made of the sum of magnitudes alone.
    """
    bounds = tensor_bounds(layout, len(vector))
    packed = scratch.array("packed", packed_size(len(vector), 1), np.uint8)
    found = moments(vector, bounds, signs=packed, brief=brief)
    both = np.array([values(each) for each in found], np.float64).reshape(-1)
    limit = np.finfo(np.float32).max
    return Encoded(name, len(vector), (packed, np.clip(both, -limit, limit).astype(np.float32), *lengths_of(bounds)))


def decode_signs(encoded: Encoded, out: Flat | None) -> Flat:
    """Undo `encode_signs`."""
    bounds = bounds_of(encoded, 2)
    packed = array(encoded, 0, np.uint8, packed_size(encoded.size, 1))
    values = finite(encoded, array(encoded, 1, np.float32, 2 * (len(bounds) - 1)), "values")
    out = room(encoded, out)
    k, xp = kernels(out), namespace(out)
    if len(bounds) <= 2:
        if encoded.size:
            k.unpack_signs(packed, *values, out)
        return out
    k.unpack_signs(packed, np.float32(1), np.float32(-1), out)
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        piece = out[begin:end]
        piece[:] = xp.where(piece > 0, xp.asarray(values[2 * i]), xp.asarray(values[2 * i + 1]))
    return out
