"""Vectors that are hard on a codec, their layouts, and changes of messages, for tests of codecs."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

HUGE = np.finfo(np.float32).max


def layout_of(size: int, tensors: int = 3) -> Layout:
    """Return a layout of a matrix, a vector and a scalar, as far as these fit."""
    if size < 400 or tensors == 1:
        return Layout(("t0",), ((size,),))
    rows = int(size**0.5 * 0.7)
    return Layout(("t0", "t1", "t2"), ((rows, rows), (size - rows * rows - 1,), ()))


def hard_vectors() -> dict[str, Flat]:
    """Return vectors that are hard to encode, by name."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(20_011, dtype=np.float32)
    return {
        "empty": np.zeros(0, np.float32),
        "one element": np.array([-3.25], np.float32),
        "one zero": np.zeros(1, np.float32),
        "seven": normal[:7].copy(),
        "zeros": np.zeros(9000, np.float32),
        "negative zeros": np.full(500, -0.0, np.float32),
        "denormal": (normal * 1e-41).astype(np.float32),
        "smallest": np.where(normal > 0, np.float32(1e-45), np.float32(-1e-45)),
        "huge": np.where(normal > 0, HUGE, -HUGE),
        "from tiny to huge": np.float32(10) ** rng.uniform(-44, 38, 5000).astype(np.float32) * np.sign(normal[:5000]),
        "normal": normal,
        "a whole chunk": normal[:8192].copy(),
        "constant": np.full(3000, 0.7, np.float32),
        "one spike": np.eye(1, 10_000, 9_999, dtype=np.float32)[0] * np.float32(-7),
    }


def kept(encoded: Encoded) -> Encoded:
    """Return a copy, which the next message does not change."""
    return Encoded(encoded.codec, encoded.size, tuple(a.copy() for a in encoded.arrays), dict(encoded.meta))


def same(one: Encoded, other: Encoded) -> bool:
    """Return whether two messages are equal to the bit."""
    bits = [[(a.dtype.str, a.shape, a.tobytes()) for a in each.arrays] for each in (one, other)]
    return bits[0] == bits[1] and (one.codec, one.size, one.meta) == (other.codec, other.size, other.meta)


def damaged(encoded: Encoded, rng: np.random.Generator) -> Encoded:
    """Return an invalid message: too short, too long, of another type, overwritten, or with other numbers."""
    arrays, meta = [a.copy() for a in encoded.arrays], dict(encoded.meta)
    which = int(rng.integers(len(arrays)))
    array = arrays[which]
    kind = int(rng.integers(8))
    if kind == 0:
        arrays[which] = array[: int(rng.integers(array.size + 1))]
    elif kind == 1:
        arrays[which] = np.concatenate([array, array[: 1 + int(rng.integers(4))]])
    elif kind == 2:
        arrays[which] = array.astype([np.float64, np.int8, np.uint16, np.float32, np.bool_][int(rng.integers(5))])
    elif kind == 3 and array.size:
        raw = array.view(np.uint8)
        raw[rng.integers(raw.size, size=3)] = rng.integers(256, size=3)
    elif kind == 4:
        del arrays[which]
    elif kind == 5:
        arrays.append(array)
    elif kind == 6 and meta:
        key = list(meta)[int(rng.integers(len(meta)))]
        odd: list[Any] = [-1, 0, 1, 2**40, 0.5, np.nan, np.inf, "4", None, True, 10**400]
        meta[key] = odd[int(rng.integers(len(odd)))]
    elif meta:
        del meta[list(meta)[int(rng.integers(len(meta)))]]
    return Encoded(encoded.codec, encoded.size, tuple(arrays), meta)
