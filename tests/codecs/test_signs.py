"""Signs are decoded with the values of their own tensor, wherever its first and last element are."""

from __future__ import annotations

import numpy as np
import pytest

from chimera.codecs.codec import CODECS, decode, decode_pieces
from chimera.codecs.kernels.layout import CHUNK, PIECE
from chimera.codecs.scratch import Scratch
from chimera.core.parameters import Layout

SIZES = [
    [1],
    [7, CHUNK - 7, CHUNK],
    [1, CHUNK - 1, 0, CHUNK + 1, 3 * CHUNK + 5, 0, 10, 1],
    [3, PIECE, 0, 5, PIECE - CHUNK, 2 * CHUNK, 1],
    [1] * 50,
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ["sign", "onebit"])
def test_each_element_gets_the_value_of_its_tensor(name: str, sizes: list[int]) -> None:
    vector = np.random.default_rng(0).standard_normal(sum(sizes), np.float32)
    layout = Layout(tuple(map(str, range(len(sizes)))), tuple((size,) for size in sizes))
    codec = CODECS.of({"name": name, "error_feedback": False})
    encoded = codec.encode(vector, layout)
    values = np.repeat(encoded.arrays[1].reshape(-1, 2), [size for size in sizes if size], axis=0)
    expected = np.where(np.signbit(vector), values[:, 1], values[:, 0])
    assert np.array_equal(decode(encoded, len(vector)), expected)
    found = np.zeros_like(vector)
    for where, piece in decode_pieces(encoded, vector, Scratch()):
        found[where] = piece
    assert np.array_equal(found, expected)
