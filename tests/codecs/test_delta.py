"""Tests of `delta`: receivers hold the reference that the server assumes, whichever messages they missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chimera
from chimera.codecs.codec import CODECS, Codec, decode, decode_with
from chimera.codecs.held import Held
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.training.server.downlink import Downlink
from codecs_kit import hard_vectors, layout_of

INNER: list[tuple[Any, float]] = [
    ("identity", 1.0),
    ({"name": "cast", "to": "bf16"}, 1.0),
    ("int8", 1.0),
    ("sign", 1.0),
    ({"name": "top-k", "ratio": 0.1, "lossless": True}, 1.0),
    ({"name": "random-k", "ratio": 0.5}, 1.0),
    ({"name": "terngrad", "clip": 0}, 0.1),
    ({"name": "powersgd", "rank": 2, "error_feedback": False}, 1.0),
    ({"name": "loss-aware", "bits": 3}, 1.0),
    ({"name": "layer-wise", "layers": {"t0": "natural"}, "default": "binary"}, 1.0),
]
SIZE = 2_003
NORMAL = hard_vectors()["normal"][:SIZE]
LAYOUT = layout_of(SIZE)


def delta(inner: Any, rate: float = 1.0) -> Codec:
    return CODECS.create("delta", {"codec": inner, "rate": rate}, seed=3)


@pytest.mark.parametrize(("inner", "rate"), INNER, ids=str)
def test_sender_and_receiver_hold_the_same_bits(inner: Any, rate: float) -> None:
    codec, rng, sent, got = delta(inner, rate), np.random.default_rng(0), Held(), Held()
    vector = NORMAL.copy()
    for scale in (1, 1e-3, 0, 1e6, 1e-30, 1):
        vector = vector + rng.standard_normal(SIZE, np.float32) * np.float32(scale)
        message, sent = codec.encode_for(sent, vector, LAYOUT)
        value, got = decode_with(got, message, SIZE)
        assert sent.value is not None
        assert sent.reference is not None
        assert got.reference is not None
        assert value.tobytes() == sent.value.tobytes()
        assert got.reference.tobytes() == sent.reference.tobytes()
        assert got.number == sent.number


@pytest.mark.parametrize(("inner", "rate"), INNER, ids=str)
def test_omitted_changes_are_sent_later(inner: Any, rate: float) -> None:
    codec, held, errors = delta(inner, rate), Held(), []
    _, held = codec.encode_for(held, np.zeros(SIZE, np.float32), LAYOUT)
    for _ in range(150):
        _, held = codec.encode_for(held, NORMAL, LAYOUT)
        assert held.reference is not None
        errors.append(float(np.linalg.norm(held.reference - NORMAL) / np.linalg.norm(NORMAL)))
    assert errors[-1] < 0.05
    if inner == {"name": "top-k", "ratio": 0.1, "lossless": True}:
        assert max(errors[11:]) < 1e-6  # ten messages take ten times a tenth


def test_with_a_rate_too_large_for_its_variance_a_codec_without_bias_diverges() -> None:
    codec, held = delta({"name": "random-k", "ratio": 0.1, "scaled": True}), Held()
    _, held = codec.encode_for(held, np.zeros(SIZE, np.float32), LAYOUT)
    for _ in range(10):
        _, held = codec.encode_for(held, NORMAL, LAYOUT)
    assert held.reference is not None
    assert float(np.linalg.norm(held.reference - NORMAL)) > 100 * float(np.linalg.norm(NORMAL))


def test_a_receiver_without_the_reference_gets_an_error() -> None:
    codec, sent, got = delta("int8"), Held(), Held()
    messages = []
    for i in range(3):
        message, sent = codec.encode_for(sent, NORMAL * np.float32(i + 1), LAYOUT)
        messages.append(message)
    with pytest.raises(CodecError, match="builds upon number 1 of its sender, and its receiver has none"):
        decode_with(Held(), messages[1], SIZE)
    _, got = decode_with(got, messages[0], SIZE)
    with pytest.raises(CodecError, match="builds upon number 2 of its sender, and its receiver has number 1"):
        decode_with(got, messages[2], SIZE)
    assert got.reference is not None
    for place in (6, 7, SIZE - 1):
        for other in (np.nextafter(got.reference[place], np.float32(9)), -got.reference[place]):
            drifted = got.reference.copy()
            drifted[place] = other
            with pytest.raises(CodecError, match="not the same here"):
                decode_with(Held(got.number, drifted), messages[1], SIZE)
    with pytest.raises(CodecError, match="builds upon number 1"):
        decode(messages[1], SIZE)
    with pytest.raises(CodecError, match=r"a note without them.*Cluster\.addressed"):
        decode(Encoded("delta", SIZE, ()), SIZE)


def downlink(inner: Any = "sign", codec: str = "delta") -> tuple[Downlink, Flat]:
    weights = NORMAL.copy()
    options = {"codec": inner} if codec == "delta" else {}
    return Downlink((codec, options), weights, LAYOUT, curvature=lambda: None, seed=1), weights


def test_receivers_with_the_same_reference_share_one_encoding() -> None:
    server, weights = downlink()
    for _ in range(3):
        first, second = server.message("a", 1), server.message("b", 1)
        assert first is second
        weights += np.float32(0.01)
        server.broadcast()
    alone = server.message("a", 1)
    weights += np.float32(0.01)
    server.broadcast()
    assert server.message("b", 1) is not server.message("a", 1)
    assert alone.meta["upon"] == server.message("late", 1).meta["upon"] + 3  # who is new gets all


@given(
    moves=st.lists(st.tuples(st.sampled_from("abcdS"), st.integers(0, 2)), min_size=1, max_size=40),
    inner=st.sampled_from(["sign", "int8", "terngrad", "identity"]),
)
@settings(max_examples=60, deadline=None)
def test_receivers_decode_all_messages_in_any_order_of_requests(moves: list[tuple[str, int]], inner: str) -> None:
    """Workers request in any order, miss updates and restart sessions; each holds the reference that the server assumes."""
    server, weights = downlink(inner)
    rng, session, helds = np.random.default_rng(0), 1, dict[str, Held]()
    for who, updates in moves:
        for _ in range(updates):
            weights += rng.standard_normal(SIZE, np.float32) * np.float32(0.1)
            server.broadcast()
        if who == "S":
            session += 1
            continue
        message = server.message(who, session)
        value, helds[who] = decode_with(helds.get(who, Held()), message, SIZE)
        assert value.tobytes() == server.vector(message).tobytes()
        if inner == "identity" or not message.meta["upon"]:
            assert np.allclose(value, weights, atol=1e-5)


def test_codecs_that_are_not_chained_have_one_message_for_all() -> None:
    server, weights = downlink(codec="int8")
    message = server.broadcast()
    assert message.codec == "int8"
    assert server.vector(message).tobytes() == decode(message, weights.size).tobytes()


def test_delta_on_the_uplink_raises_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"codec 'delta' encodes weights.*\[codec\.downlink\]") as caught:
        chimera.train("mlp", "digits", codec={"name": "delta", "codec": "sign"}, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
