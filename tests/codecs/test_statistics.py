"""Tests of statistics of codecs: unbiasedness, no loss with error feedback, and the errors of their papers."""

from __future__ import annotations

import numpy as np
import pytest

from chimera.codecs.codec import CODECS, decode
from chimera.codecs.selection import select_exact
from chimera.core.errors import CodecError
from chimera.core.parameters import Flat, Layout
from codecs_kit import SETUPS, hard_vectors, layout_of

UNBIASED = [
    "int8 stochastic",
    "int8 short blocks",
    "qsgd",
    "qsgd tensors",
    "qsgd 3 bits",
    "qsgd 11 bits",
    "terngrad unclipped",
    "natural",
    "nonuniform given",
    "random-k scaled",
]
MESSAGES = 4000
NORMAL = hard_vectors()["normal"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("setup", UNBIASED)
def test_unbiased_codecs_average_to_the_vector(setup: str) -> None:
    vector = np.concatenate([NORMAL[:500], NORMAL[:100] * np.float32(1e-3), [np.float32(0)]])
    codec, layout = CODECS.of(SETUPS[setup]), layout_of(vector.size)
    codec.reseed(1)
    total, squares = np.zeros((2, vector.size))
    for _ in range(MESSAGES):
        decoded = decode(codec.encode(vector, layout), vector.size).astype(np.float64)
        total += decoded
        squares += decoded**2
    mean = total / MESSAGES
    # The standard error as measured, and where an element hardly ever was drawn, as its expected number of draws says.
    error = np.sqrt(np.maximum(squares / MESSAGES - mean**2, 0) / MESSAGES)
    scale = np.abs(vector).max() * np.sqrt(vector.size) / MESSAGES
    assert (np.abs(mean - vector) <= 5 * error + scale).all()
    assert abs(float((mean - vector).sum())) < 5 * float(np.sqrt((error**2).sum()))
    assert abs(float(np.dot(mean - vector, vector))) < 5 * float(np.sqrt((error**2) @ (vector.astype(np.float64) ** 2)))


@pytest.mark.parametrize("inner", ["sign", "top-k", "terngrad", "int8", "random-k", "powersgd", "threshold", "onebit"])
def test_error_feedback_loses_nothing(inner: str) -> None:
    """``decoded + memory == input + old memory``, in float32: the left side adds up to the right side's float32 sum.

    The memory is a float32 difference, exact where that has no more digits than float32: always where the message has an
    element as it is, or zero, or is within a factor 2 of it (Sterbenz); else the rest is below half a unit in its last place.
    """
    codec = CODECS.of({"name": "error-feedback", "codec": {**SETUPS[inner], "error_feedback": False}})
    layout = layout_of(NORMAL.size)
    old = np.zeros(NORMAL.size, np.float32)
    for i in range(5):
        vector = np.roll(NORMAL, i * 17)
        decoded = decode(codec.encode(vector, layout), vector.size)
        memory = codec.state()["memory"]
        total = vector + old
        assert (memory == total - decoded).all()
        exact = total.astype(np.float64) - decoded.astype(np.float64) == memory.astype(np.float64)
        assert (decoded[exact].astype(np.float64) + memory[exact] == total[exact]).all()
        assert exact[decoded == 0].all()
        assert np.abs(decoded.astype(np.float64) + memory - total).max() <= np.spacing(np.abs(memory).max()) / 2
        if inner in ("top-k", "threshold", "random-k"):
            assert exact.all()
            assert (decoded + memory == total).all()
        old = memory.copy()


def test_the_residual_stays_bounded() -> None:
    codec, layout = CODECS.of({"name": "top-k", "ratio": 0.1, "error_feedback": True}), layout_of(NORMAL.size)
    norms = []
    for _ in range(200):
        codec.encode(NORMAL, layout)
        norms.append(float(np.linalg.norm(codec.state()["memory"])))
    assert max(norms[100:]) < 1.1 * max(norms[:100])


def test_a_rejected_vector_does_not_change_the_residual() -> None:
    codec, layout = CODECS.of({"name": "top-k", "error_feedback": True}), layout_of(NORMAL.size)
    codec.encode(NORMAL, layout)
    with pytest.raises(ValueError, match="NaN"):
        codec.encode(np.full_like(NORMAL, np.nan), layout)
    assert np.isfinite(decode(codec.encode(NORMAL, layout), NORMAL.size)).all()


def relative_error(table: object, vector: Flat) -> float:
    decoded = decode(CODECS.of(table).encode(vector, layout_of(vector.size, 1)), vector.size)
    return float(np.linalg.norm(decoded - vector) ** 2 / np.linalg.norm(vector) ** 2)


def test_errors_match_theory() -> None:
    plain = {"error_feedback": False}
    assert relative_error({"name": "cast"}, NORMAL) < 2.0**-22
    assert relative_error({"name": "cast", "to": "bf16"}, NORMAL) < 2.0**-16
    assert relative_error({"name": "int8", "block": 256}, NORMAL) < 1e-4
    assert relative_error({"name": "sign"}, NORMAL) == pytest.approx(
        1 - 2 / np.pi, abs=0.01
    )  # of a normal distribution
    assert relative_error({"name": "onebit", **plain}, NORMAL) == pytest.approx(1 - 2 / np.pi, abs=0.01)
    assert relative_error({"name": "natural"}, NORMAL) < 1 / 8
    fitted = relative_error({"name": "nonuniform", "count": 8}, NORMAL)
    assert fitted < relative_error({"name": "nonuniform", "levels": np.linspace(0, 1, 8).tolist()}, NORMAL) / 1.5
    assert relative_error({"name": "qsgd", "norm": "l2"}, NORMAL) < np.sqrt(512) / 4  # the paper's bound


def test_int8_error_is_at_most_half_a_level() -> None:
    for name, vector in hard_vectors().items():
        if vector.size and name not in ("huge", "from tiny to huge"):
            decoded = decode(CODECS.create("int8").encode(vector, layout_of(vector.size, 1)), vector.size)
            level = np.abs(vector).max().astype(np.float64) / 127
            assert np.abs(decoded.astype(np.float64) - vector).max() <= 0.5001 * level + 1e-45, name


@pytest.mark.parametrize("size", [1, 2, 3, 100, 4097, 65_536])
def test_random_k_selects_each_element_equally_often(size: int) -> None:
    from chimera.codecs.random_k import indices_of
    from chimera.codecs.random_key import key_of

    assert sorted(indices_of(size, size, key_of(3, 0), NORMAL).tolist()) == list(range(size))
    if size == 100:
        counts = np.zeros(size)
        for message in range(3000):
            counts[indices_of(size, 10, key_of(5, message), NORMAL)] += 1
        assert np.abs(counts - 300).max() < 5 * np.sqrt(300)


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1, 0.5, 1.0])
def test_top_k_selects_the_largest(ratio: float) -> None:
    rng = np.random.default_rng(0)
    for vector in (NORMAL, np.round(NORMAL * 2).astype(np.float32), rng.permutation(NORMAL) ** 3):
        decoded = decode(CODECS.create("top-k", {"ratio": ratio}).encode(vector, layout_of(vector.size)), vector.size)
        count = max(round(ratio * vector.size), 1)
        taken = decoded != 0
        smallest = np.sort(np.abs(vector))[-count]
        assert taken.sum() == count or smallest == 0
        assert (decoded[taken] == vector[taken]).all()
        assert (np.abs(vector[~taken]) <= smallest).all()


@pytest.mark.parametrize("count", [1, 100, 3000, 50_000])
def test_preselection_by_sample_does_not_change_the_selection(count: int) -> None:
    """Also if the sample misleads, and if many elements are equal, of which the first are selected."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(1 << 19, np.float32)
    hidden = normal.copy()
    hidden[::8] = 0  # all that the sample sees
    few = normal.copy()
    few[1::8] *= 100  # what it does not see
    for vector in (normal, hidden, few, np.round(normal), np.zeros_like(normal)):
        indices, values = select_exact(vector, count)
        wanted = np.sort(np.argsort(-np.abs(vector), kind="stable")[:count])
        assert (indices == wanted).all()
        assert (values == vector[wanted]).all()


def test_sampled_top_k_selects_about_the_requested_number() -> None:
    vector = np.tile(NORMAL, 40)
    for table in ({"ratio": 0.01}, {"ratio": 0.001}):
        codec = CODECS.create("top-k", {**table, "sampled": True})
        count = np.count_nonzero(decode(codec.encode(vector, layout_of(vector.size)), vector.size))
        assert count == pytest.approx(table["ratio"] * vector.size, rel=0.3)


def test_powersgd_is_exact_for_low_rank_matrices() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.standard_normal((60, 2)) @ rng.standard_normal((2, 90))).astype(np.float32)
    layout = Layout(("m", "b"), ((60, 90), (30,)))
    vector = np.concatenate([matrix.reshape(-1), rng.standard_normal(30, np.float32)])
    codec = CODECS.create("powersgd", {"rank": 2, "error_feedback": False})
    encoded = codec.encode(vector, layout)
    assert encoded.bits_per_element == pytest.approx(32 * (2 * 150 + 30 + 6) / vector.size)
    assert np.allclose(decode(encoded, vector.size), vector, atol=1e-4)


def test_powersgd_error_decreases_over_messages() -> None:
    rng = np.random.default_rng(0)
    layout = Layout(("m",), ((80, 100),))
    vector = (rng.standard_normal((80, 100)) * 0.9 ** np.arange(100)).astype(np.float32).reshape(-1)
    codec = CODECS.create("powersgd", {"rank": 4, "error_feedback": False})
    errors = [float(np.linalg.norm(decode(codec.encode(vector, layout), 8000) - vector)) for _ in range(6)]
    assert errors[-1] < errors[0]


def test_dgc_sends_all_changes_eventually_and_warms_up() -> None:
    codec = CODECS.create("dgc", {"ratio": 0.01, "momentum": 0.0, "warm_up": 4})
    layout, total = layout_of(1000), np.zeros(1000)
    counts = []
    for i in range(300):
        encoded = codec.encode(NORMAL[:1000] if i < 100 else np.zeros(1000, np.float32), layout)
        counts.append(encoded.arrays[0].size)
        total += decode(encoded, 1000)
    assert counts[:5] == [250, 112, 50, 22, 10]
    assert np.allclose(total, NORMAL[:1000] * 100.0, rtol=1e-4, atol=1e-3)


def test_dgc_clears_the_velocity_of_sent_elements() -> None:
    codec = CODECS.create("dgc", {"ratio": 0.5, "momentum": 0.9})
    vector = np.array([1, 0.1], np.float32)
    codec.encode(vector, layout_of(2))
    assert codec.state()["velocity"].tolist() == pytest.approx([0, 0.1])


def test_dgc_starts_again_after_a_total_that_is_not_finite() -> None:
    codec = CODECS.create("dgc", {"ratio": 0.5, "momentum": 0.9})
    large = np.full(2, 3e38, np.float32)
    codec.encode(large, layout_of(2))
    with pytest.raises(CodecError, match="infinity"):
        codec.encode(large, layout_of(2))
    vector = np.array([1, 0.1], np.float32)
    np.testing.assert_allclose(decode(codec.encode(vector, layout_of(2)), 2), [1, 0])
    np.testing.assert_allclose(decode(codec.encode(np.zeros(2, np.float32), layout_of(2)), 2), [0, 0.19], rtol=1e-6)


@pytest.mark.parametrize("clip", [0.5, 3.0, 1000.0])
def test_dgc_clips_a_gradient_to_a_norm(clip: float) -> None:
    codec, vector = CODECS.create("dgc", {"ratio": 1.0, "momentum": 0.0, "clip": clip}), NORMAL[:1000]
    decoded, norm = decode(codec.encode(vector.copy(), layout_of(1000)), 1000), float(np.linalg.norm(vector))
    np.testing.assert_allclose(decoded, vector * min(1.0, clip / norm), rtol=1e-5)


def test_layers_can_have_different_codecs() -> None:
    layout = Layout(("a.weight", "a.bias", "b.weight"), ((30, 30), (30,), (50, 30)))
    vector = NORMAL[: layout.size]
    codec = CODECS.create(
        "layer-wise", {"layers": {"*.bias": "identity", "b.*": {"name": "top-k", "ratio": 0.1}}, "default": "sign"}
    )
    decoded = decode(codec.encode(vector, layout), vector.size)
    assert len(set(np.abs(decoded[:900]).tolist())) == 1
    assert (decoded[900:930] == vector[900:930]).all()
    assert np.count_nonzero(decoded[930:]) == 150
