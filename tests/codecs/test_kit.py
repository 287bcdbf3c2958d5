"""Tests of the contract of all codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera.codecs.codec import CODECS, Codec, decode, decode_pieces, decode_with
from chimera.codecs.held import Held
from chimera.codecs.kernels.layout import CHUNK
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from codecs_kit import HUGE, SETUPS, damaged, hard_vectors, kept, layout_of, same

VECTORS = hard_vectors()
NORMAL = VECTORS["normal"]
EXACT = {"identity", "rows", "rows, compressed"}
CLAIMED = {  # bits per element of a long vector, and what scales and the like may add
    "identity": 32,
    "fp16": 16,
    "bf16": 16,
    "int8": 8,
    "int8 stochastic": 8,
    "int8 blocks": 8 + 32 / 256,
    "int8 short blocks": 8 + 32 / 16,
    "qsgd": 4 + 32 / 512,
    "qsgd tensors": 4,
    "qsgd 3 bits": 3 + 32 / 64,
    "qsgd 11 bits": 11 + 32 / 512,
    "terngrad": 2,
    "terngrad unclipped": 2,
    "sign": 1,
    "sign unscaled": 1,
    "onebit": 1,
    "onebit without feedback": 1,
    "binary": 1,
    "natural": 9,
    "nonuniform": 4,
    "nonuniform given": 4,
    "top-k": 0.32 + 0.082,
    "top-k bitmap": 16 + 1,
    "top-k sampled": 0.32 + 0.082,
    "loss-aware": 2,
    "loss-aware exact": 2,
    "loss-aware linear": 4,
    "loss-aware logarithmic": 3,
    "adaptive": 4 + 32 / 512,
    "delta": 32,
    "rows": 32,
    "random-k": 3.2,
    "random-k scaled": 9.6,
}


def make(setup: str, seed: int = 7) -> Codec:
    codec = CODECS.of(SETUPS[setup])
    codec.reseed(seed)
    return codec


def sent(setup: str, vector: Flat, layout: Layout | None = None, seed: int = 7) -> Encoded:
    return make(setup, seed).encode(vector.copy(), layout or layout_of(vector.size))


def test_every_registered_codec_is_tested() -> None:
    assert {entry.name for entry in CODECS.entries()} <= {table["name"] for table in SETUPS.values()}


@pytest.mark.parametrize("setup", SETUPS)
def test_edge_case_vectors_are_encoded_and_decoded(setup: str) -> None:
    for name, vector in VECTORS.items():
        before = vector.copy()
        encoded = make(setup).encode(vector, layout_of(vector.size))
        decoded = decode(encoded, vector.size)
        assert decoded.shape == vector.shape, name
        assert decoded.dtype == np.float32, name
        assert np.isfinite(decoded).all(), name
        assert (vector == before).all(), name
        if setup in EXACT:
            assert decoded.tobytes() == vector.tobytes(), name
        if not vector.any() and setup != "sign unscaled":
            assert not decoded.any(), name


@pytest.mark.parametrize("setup", SETUPS)
@given(
    vector=hnp.arrays(
        np.float32, st.integers(0, 700), elements=st.floats(float(-HUGE), float(HUGE), width=32, allow_subnormal=True)
    )
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_finite_vector_is_encoded_and_decoded(setup: str, vector: Flat) -> None:
    decoded = decode(sent(setup, vector), vector.size)
    assert decoded.shape == vector.shape
    assert np.isfinite(decoded).all()


@pytest.mark.parametrize("setup", CLAIMED)
def test_messages_have_the_claimed_size(setup: str) -> None:
    vector = np.tile(NORMAL, 10)
    encoded = sent(setup, vector)
    measured = 8 * (sum(len(a.tobytes()) for a in encoded.arrays) + 8 * len(encoded.meta)) / vector.size
    assert encoded.bits_per_element == pytest.approx(measured)
    assert encoded.bits_per_element == pytest.approx(CLAIMED[setup], rel=0.06 if "sampled" in setup else 0.01)


@pytest.mark.parametrize("setup", SETUPS)
def test_equal_seeds_give_equal_messages(setup: str) -> None:
    one, other = make(setup), make(setup)
    for _ in range(3):
        assert same(one.encode(NORMAL, layout_of(NORMAL.size)), other.encode(NORMAL, layout_of(NORMAL.size)))


@pytest.mark.parametrize("setup", ["int8 stochastic", "qsgd", "terngrad", "natural", "nonuniform given", "random-k"])
def test_other_seeds_and_later_messages_draw_other_numbers(setup: str) -> None:
    codec = make(setup)
    first, second = (kept(codec.encode(NORMAL, layout_of(NORMAL.size))) for _ in range(2))
    assert not same(first, second)
    assert not same(first, sent(setup, NORMAL, seed=8))


@pytest.mark.parametrize("setup", SETUPS)
def test_decoding_is_stateless(setup: str) -> None:
    """A receiver of chained messages holds its own reference; without one it can decode the first message only."""
    codec, layout, held = make(setup), layout_of(NORMAL.size), Held()
    messages = [kept(codec.encode(NORMAL * np.float32(i + 1), layout)) for i in range(3)]
    forward = []
    for message in messages:
        decoded, after = decode_with(held, message, NORMAL.size)
        forward.append((message, held, decoded.copy()))
        held = after
    room = np.full(NORMAL.size, 7, np.float32)
    for message, before, expected in reversed(forward):
        assert decode_with(before, message, NORMAL.size)[0].tobytes() == expected.tobytes()
        assert decode_with(before, message, NORMAL.size, room)[0].tobytes() == expected.tobytes()
        if before.number:
            with pytest.raises(CodecError, match="builds upon number"):
                decode(message, NORMAL.size)
        else:
            assert decode(message, NORMAL.size).tobytes() == expected.tobytes()
            assert codec.decode(message).tobytes() == expected.tobytes()


@pytest.mark.parametrize("setup", SETUPS)
def test_decoded_pieces_form_the_vector(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.codecs.piecewise.PIECE", CHUNK)  # short, so that one of these vectors has several
    for name, vector in VECTORS.items():
        encoded, at, scratch = sent(setup, vector), 0, Scratch()
        expected, found = decode(encoded, vector.size), np.full_like(vector, 7)
        for where, values in decode_pieces(encoded, vector, scratch):
            assert where.start == at, name
            found[where], at = values, where.stop
        assert at == vector.size, name
        assert found.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("setup", SETUPS)
def test_a_restored_codec_sends_the_same_messages(setup: str) -> None:
    layout = layout_of(NORMAL.size)
    codec = make(setup)
    for i in range(2):
        codec.encode(NORMAL * np.float32(i + 1), layout)
    state = {name: value.copy() for name, value in codec.state().items()}
    later = make(setup)
    later.restore(state)
    for _ in range(2):
        assert same(codec.encode(NORMAL, layout), later.encode(NORMAL, layout))


@pytest.mark.parametrize("setup", [name for name in SETUPS if name not in {"identity", "random-k", "random-k scaled"}])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_vectors_are_rejected(setup: str, bad: float) -> None:
    vector = NORMAL.copy()
    vector[123] = bad
    with pytest.raises(CodecError, match=r"finite|NaN"):
        sent(setup, vector)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_message_of_another_size_is_rejected(setup: str) -> None:
    encoded = sent(setup, NORMAL)
    with pytest.raises(CodecError, match="20011 elements came where 20010"):
        decode(encoded, NORMAL.size - 1)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_damaged_message_is_an_error_or_a_vector(setup: str) -> None:
    rng = np.random.default_rng(3)
    for size in (0, 1, 9, 1234, 9000):
        vector = NORMAL[:size]
        encoded = kept(sent(setup, vector))
        for _ in range(120 if size > 9 else 25):
            broken = damaged(encoded, rng)
            try:
                decoded = decode(broken, size)
            except CodecError:
                continue
            else:
                assert decoded.shape == (size,)
                assert decoded.dtype == np.float32


@pytest.mark.parametrize("setup", SETUPS)
def test_a_truncated_message_is_rejected(setup: str) -> None:
    encoded = kept(sent(setup, NORMAL))
    for which, array in enumerate(encoded.arrays):
        if array.size:
            arrays = (*encoded.arrays[:which], array[:-1], *encoded.arrays[which + 1 :])
            with pytest.raises(CodecError):
                decode(Encoded(encoded.codec, encoded.size, arrays, encoded.meta), NORMAL.size)


@pytest.mark.parametrize("name", ["nonsense", "os:system", "tests.py:thing", None, 3, ["x"]])
def test_a_message_of_an_unknown_codec_is_rejected(name: Any) -> None:
    with pytest.raises(CodecError, match="not known here"):
        decode(Encoded(name, 1, (np.zeros(1, np.float32),)), 1)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"name": "top-k", "ratio": 0}, "ratio must be above 0"),
        ({"name": "qsgd", "levels": 0}, "levels must be from 1"),
        ({"name": "qsgd", "block": 100}, "power of two"),
        ({"name": "cast", "to": "fp8"}, "fp8"),
        ({"name": "terngrad", "clip": -1}, "clip must be"),
        ({"name": "nonuniform", "levels": [0, 2]}, "levels must ascend"),
        ({"name": "threshold", "value": 0}, "value must be"),
        ({"name": "powersgd", "rank": 0}, "rank must be"),
        ({"name": "dgc", "momentum": 1}, "momentum must be"),
        ({"name": "sign", "error_feedback": "yes"}, "neither true nor false"),
        ({"name": "lossless", "level": 40}, "level must be"),
        ({"name": "lossless", "lossless": True}, "not compressed again"),
        ({"name": "layer-wise", "default": "layer-wise"}, "cannot be layer-wise too"),
        ({"name": "layer-wise", "layers": {"*": "nonsense"}}, "unknown codec 'nonsense'"),
        ({"name": "error-feedback", "codec": {"ratio": 1}}, "needs a 'name'"),
        ({"name": "delta", "rate": 0}, "rate must be above 0"),
        ({"name": "delta", "codec": "onebit"}, "error_feedback = false"),
        ({"name": "delta", "codec": {"name": "lossless", "codec": "dgc"}}, "no memory of its own"),
        ({"name": "delta", "codec": "delta"}, "cannot be put around 'delta'"),
        ({"name": "delta", "lossless": True}, "cannot be put around 'delta'"),
        ({"name": "delta", "error_feedback": True}, "cannot be put around 'delta'"),
        ({"name": "layer-wise", "default": "delta"}, "cannot be put around 'delta'"),
        ({"name": "adaptive", "codecs": ["int8", "delta"]}, "cannot be put around 'delta'"),
        ({"name": "loss-aware", "bits": 1}, "bits must be from 2"),
        ({"name": "loss-aware", "bits": 3, "exact": True}, "for 2 bits only"),
        ({"name": "adaptive", "codecs": ["int8"]}, "chooses among 2 codecs, not 1"),
        ({"name": "adaptive", "codecs": ["int8", "sign", "cast"]}, "chooses among 2 codecs, not 3"),
        ({"name": "adaptive", "change": 0}, "change must be above 0"),
        ({"name": "adaptive", "every": 0}, "every must be at least 1"),
        ({"name": "adaptive", "seconds": 1.0}, "seconds says nothing where it goes by norm"),
        ({"name": "adaptive", "by": "speed"}, "needs the option 'seconds'"),
        ({"name": "adaptive", "by": "speed", "seconds": 1.0, "every": 3}, "every says nothing where it goes by speed"),
    ],
)
def test_an_invalid_option_raises_a_one_line_error(table: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as caught:
        CODECS.of(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_million_elements_are_encoded_and_decoded(setup: str) -> None:
    check_long(setup, 1_000_003)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS)
def test_25_million_elements_are_encoded_and_decoded(setup: str) -> None:
    check_long(setup, 25_000_000)


def check_long(setup: str, size: int) -> None:
    vector = np.tile(NORMAL, -(-size // NORMAL.size))[:size]
    decoded = decode(make(setup).encode(vector, layout_of(size)), size)
    assert decoded.shape == vector.shape
    assert np.isfinite(decoded).all()
    if setup != "sign unscaled":
        assert float(np.dot(vector, decoded)) > 0  # it points the same way
