"""Tests of the codec `rows`: only nonzero rows are sent, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.codecs.codec import CODECS, decode, decode_with, rows_of
from chimera.codecs.held import Held
from chimera.codecs.kernels import compiled, plain
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

TABLES = Layout(("embedding", "bias", "output", "scale"), ((3000, 20), (500,), (3000, 20), ()))


def touched(layout: Layout, share: float, seed: int = 0) -> Flat:
    """Return a vector of which about this share of the rows is not zero."""
    rng = np.random.default_rng(seed)
    flat = rng.standard_normal(layout.size).astype(np.float32)
    layout.rows.multiply(flat, (rng.random(layout.rows.rows) < share).astype(np.float32))
    return flat + np.float32(0)  # no negative zeros


@pytest.mark.parametrize("share", [0.0, 0.0003, 0.05, 0.5, 0.99, 1.0])
def test_message_size_is_proportional_to_nonzero_rows(share: float) -> None:
    flat = touched(TABLES, share)
    encoded = CODECS.create("rows").encode(flat, TABLES)
    assert decode(encoded, flat.size).tobytes() == flat.tobytes()
    dense = 32 + 0.01
    places = 1.05 * TABLES.rows.rows / TABLES.size  # a bit a row at most
    assert encoded.bits_per_element <= min(dense, 32 * np.count_nonzero(flat) / flat.size + places + 0.01)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 1),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=4),
)
def test_rows_are_encoded_and_decoded_to_the_bit(seed: int, share: float, shapes: list[tuple[int, int]]) -> None:
    layout = Layout(tuple(f"t{i}" for i in range(len(shapes))), tuple(shapes))
    flat = touched(layout, share, seed)
    flat[np.random.default_rng(seed).random(flat.size) < 0.1] = -0.0  # which holds a bit, and is kept
    encoded = CODECS.create("rows").encode(flat, layout)
    assert decode(encoded, flat.size).tobytes() == flat.tobytes()
    assert encoded.nbytes <= flat.nbytes
    rows = rows_of(encoded, layout.rows)
    if rows is not None:
        assert rows.values.tobytes() == layout.rows.gather(flat, rows.numbers).tobytes()
        assert layout.rows.gather(flat, rows.numbers).size == layout.rows.elements(rows.numbers)


@given(st.integers(1, 70), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_compiled_and_plain_kernels_find_the_same_rows(width: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(width * count) < 1 / width, np.float32(-0.0), np.float32(0)).astype(np.float32)
    flags = [np.full(count, 9, np.uint8) for _ in range(2)]
    for module, out in zip((compiled, plain), flags, strict=True):
        module.nonzero_rows(x, width, out)
    assert flags[0].tolist() == flags[1].tolist() == (np.signbit(x).reshape(count, width).any(1)).tolist()


def test_rows_of_another_layout_are_rejected() -> None:
    encoded = CODECS.create("rows").encode(touched(TABLES, 0.1), TABLES)
    other = Layout(("all",), ((TABLES.size,),))
    with pytest.raises(CodecError, match="are not as long as those of its receiver"):
        rows_of(encoded, other.rows)
    assert rows_of(CODECS.create("identity").encode(touched(TABLES, 0.1), TABLES), TABLES.rows) is None


def broken(which: str) -> dict[str, Any]:
    encoded = CODECS.create("rows").encode(touched(TABLES, 0.1), TABLES)
    arrays, meta = list(encoded.arrays), dict(encoded.meta)
    if which == "more rows than there are":
        meta["rows"] = TABLES.rows.rows + 1
    elif which == "a row less":
        meta["rows"] -= 1
    elif which == "runs of no rows":
        arrays[1] = np.concatenate([np.array([0], np.uint32), arrays[1][1:]])
    elif which == "an odd number of runs":
        arrays[1] = arrays[1][:-1]
    elif which == "values of fewer rows":
        arrays[0] = arrays[0][:-20]
    elif which == "a value that is not finite":
        arrays[0] = np.where(np.arange(arrays[0].size) == 7, np.float32(np.nan), arrays[0])
    elif which == "a place beyond":
        arrays[2:] = [np.full(-(-TABLES.rows.rows // 8), 0, np.uint8)]
        arrays[2][-1] = 0x80
        arrays[0], meta = arrays[0][:20], {"rows": 1}
    return {"arrays": tuple(arrays), "meta": meta}


@pytest.mark.parametrize(
    "which",
    [
        "more rows than there are",
        "a row less",
        "runs of no rows",
        "an odd number of runs",
        "values of fewer rows",
        "a value that is not finite",
        "a place beyond",
    ],
)
def test_an_invalid_message_is_rejected(which: str) -> None:
    encoded = Encoded("rows", TABLES.size, **broken(which))
    with pytest.raises(CodecError):
        decode(encoded, TABLES.size)
    with pytest.raises(CodecError):
        rows_of(encoded, TABLES.rows)


def test_delta_with_rows_sends_changed_rows_only() -> None:
    codec, held, theirs = CODECS.of({"name": "delta", "codec": "rows"}), Held(), Held()
    weights = touched(TABLES, 1)
    sizes = []
    for step in range(12):
        encoded, held = codec.encode_for(held, weights, TABLES)
        value, theirs = decode_with(theirs, encoded, weights.size)
        assert np.allclose(value, weights, rtol=1e-6, atol=1e-7)
        sizes.append(encoded.bits_per_element)
        weights = weights - np.float32(0.1) * touched(TABLES, 0.05, seed=step)
    assert sizes[0] > 32
    assert max(sizes[1:]) < 32 * 0.12
