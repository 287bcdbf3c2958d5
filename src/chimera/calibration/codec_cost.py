"""The time that a codec takes on this machine to encode and decode vectors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, decode
from chimera.core.parameters import Layout
from chimera.engines.simulated.models.compute import CodecCost
from chimera.training.comparison.variation import Choice, read_variations

_REPEATS, _WARM_UP = 30, 5
_MOST_ELEMENTS = 1 << 22
"""The longest vector that is measured first; times of longer ones are on the same line."""


def codec_costs(texts: Sequence[str], elements: int) -> dict[str, CodecCost]:
    """Measure codecs, each a name with options such as ``top-k:ratio=0.01``; return their costs by name.

    Raises
    ------
    ConfigurationError : a codec or an option is unknown.
    """
    if not texts:
        return {}
    [variation] = read_variations([f"codec={','.join(texts)}"])
    return {str(choice.value): _cost(choice, min(max(elements, 1), _MOST_ELEMENTS)) for choice in variation.choices}


def _cost(choice: Choice, elements: int) -> CodecCost:
    sides = [math.isqrt(elements) + 1, 2 * math.isqrt(elements) + 2]
    encode, decoded = zip(*(_seconds(choice, side) for side in sides), strict=True)
    sizes = [side**2 for side in sides]
    (fixed, each), (decode_fixed, decode_each) = _line(sizes, encode), _line(sizes, decoded)
    return CodecCost(
        seconds_per_message=fixed,
        seconds_per_element=each,
        decode_per_message=decode_fixed,
        decode_per_element=decode_each,
    )


def _seconds(choice: Choice, side: int) -> tuple[float, float]:
    """Return the seconds of encoding and of decoding a square matrix, which codecs of low rank need."""
    size = side**2
    options = {key: value for key, value in (choice.options or {}).items() if key != "downlink"}
    codec, layout = CODECS.create(str(choice.value), options), Layout(("weights",), ((side, side),))
    vector = np.random.default_rng(0).normal(size=size).astype(np.float32)
    out = np.empty_like(vector)
    encode = _median_s(lambda: codec.pack(vector, layout))
    message = codec.pack(vector, layout)
    return encode, _median_s(lambda: decode(message, size, out))


def _median_s(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_WARM_UP + _REPEATS):
        began_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began_s)
    return float(np.median(seconds[_WARM_UP:]))


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the fixed seconds and the seconds per element of a line through two points, both at least 0."""
    each = max((seconds[1] - seconds[0]) / (sizes[1] - sizes[0]), 0.0)
    fixed = seconds[0] - each * sizes[0]
    return (fixed, each) if fixed >= 0 else (0.0, seconds[0] / sizes[0])
