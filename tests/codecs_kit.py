"""Vectors that are hard on a codec, layouts, and how each codec is set up to be tested."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

HUGE = np.finfo(np.float32).max
LAYERS = {"name": "layer-wise", "layers": {"t0": {"name": "top-k", "ratio": 0.1}, "t1": "sign"}, "default": "int8"}
SETUPS: dict[str, dict[str, Any]] = {
    "identity": {"name": "identity"},
    "fp16": {"name": "cast"},
    "bf16": {"name": "cast", "to": "bf16"},
    "int8": {"name": "int8"},
    "int8 stochastic": {"name": "int8", "stochastic": True},
    "int8 blocks": {"name": "int8", "block": 256},
    "int8 short blocks": {"name": "int8", "block": 16, "stochastic": True},
    "qsgd": {"name": "qsgd"},
    "qsgd euclidean": {"name": "qsgd", "norm": "l2"},
    "qsgd tensors": {"name": "qsgd", "levels": 7, "norm": "l2", "block": 0},
    "qsgd 3 bits": {"name": "qsgd", "levels": 3, "norm": "max", "block": 64},
    "qsgd 11 bits": {"name": "qsgd", "levels": 1000, "norm": "max"},
    "terngrad": {"name": "terngrad"},
    "terngrad unclipped": {"name": "terngrad", "clip": 0},
    "sign": {"name": "sign"},
    "sign unscaled": {"name": "sign", "scaled": False},
    "onebit": {"name": "onebit"},
    "onebit without feedback": {"name": "onebit", "error_feedback": False},
    "binary": {"name": "binary"},
    "natural": {"name": "natural"},
    "nonuniform": {"name": "nonuniform"},
    "nonuniform given": {"name": "nonuniform", "levels": [0, 0.125, 0.25, 0.5, 1], "stochastic": True},
    "top-k": {"name": "top-k"},
    "top-k bitmap": {"name": "top-k", "ratio": 0.5},
    "top-k sampled": {"name": "top-k", "sampled": True, "error_feedback": True},
    "random-k": {"name": "random-k", "ratio": 0.1},
    "random-k scaled": {"name": "random-k", "ratio": 0.3, "scaled": True},
    "threshold": {"name": "threshold", "value": 1.0},
    "powersgd": {"name": "powersgd"},
    "dgc": {"name": "dgc", "ratio": 0.01, "clip": 1.0, "warm_up": 3},
    "loss-aware": {"name": "loss-aware"},
    "loss-aware exact": {"name": "loss-aware", "exact": True},
    "loss-aware linear": {"name": "loss-aware", "bits": 4},
    "loss-aware logarithmic": {"name": "loss-aware", "bits": 3, "levels": "logarithmic"},
    "adaptive": {"name": "adaptive", "every": 2},
    "adaptive speed": {
        "name": "adaptive",
        "by": "speed",
        "codecs": ["terngrad", {"name": "top-k", "ratio": 0.2}, "int8"],
        "seconds": 0.01,
        "bandwidth_bytes_s": 1e6,
    },
    "delta": {"name": "delta", "codec": {"name": "top-k", "ratio": 0.1}},
    "delta of ternary": {"name": "delta", "codec": "terngrad", "rate": 0.25},
    "delta of rows": {"name": "delta", "codec": "rows"},
    "rows": {"name": "rows"},
    "rows, compressed": {"name": "rows", "lossless": True},
    "error-feedback": {"name": "error-feedback", "codec": {"name": "top-k", "ratio": 0.05}},
    "lossless": {"name": "lossless", "codec": "terngrad"},
    "layer-wise": LAYERS,
    "all of them": {**LAYERS, "error_feedback": True, "lossless": True},
}


def layout_of(size: int, tensors: int = 3) -> Layout:
    """Return a layout of a matrix, a vector and a scalar, as far as they fit."""
    if size < 400 or tensors == 1:
        return Layout(("t0",), ((size,),))
    rows = int(size**0.5 * 0.7)
    return Layout(("t0", "t1", "t2"), ((rows, rows), (size - rows * rows - 1,), ()))


def hard_vectors() -> dict[str, Flat]:
    """Return vectors by name."""
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
    """Return a message of which something is wrong: too short, too long, of another type, overwritten, with other numbers."""
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
