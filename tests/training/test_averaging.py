"""Tests of row aggregation: the mean over all workers, over the workers that sent a row, or the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.codecs.codec import CODECS
from chimera.core.errors import CodecError, ConfigurationError, UnknownNameError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.training.messages.rejection import Rejected
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard

TABLE = Layout(("embedding", "bias"), ((40, 3), (10,)))
WAYS = ["mean", "touched", "sum"]
OPTIMIZERS = {
    "sgd": OptimizerSettings("sgd", {"lr": 0.5}),
    "momentum": OptimizerSettings("sgd", {"lr": 0.5, "momentum": 0.9}),
    "decay": OptimizerSettings("sgd", {"lr": 0.5, "weight_decay": 0.1}),
    "adagrad": OptimizerSettings("adagrad", {"lr": 0.5, "lr_decay": 0.1}),
    "adam": OptimizerSettings("adam", {"lr": 0.1}),
}


def shard(optimizer: str = "sgd", **options: Any) -> ParameterShard:
    weights = np.linspace(-1, 1, TABLE.size, dtype=np.float32)
    return ParameterShard(weights, TABLE, optimizer=OPTIMIZERS[optimizer], **options)


def weights_of(server: ParameterShard) -> Flat:
    return server.model().arrays[0].copy()


def gradient(*rows: int, value: float = 1.0) -> Flat:
    """Return a vector that is ``value`` in these rows and zero elsewhere."""
    flat = np.zeros(TABLE.size, np.float32)
    for row in rows:
        begin = TABLE.rows.offset(row)
        flat[begin : TABLE.rows.offset(row + 1)] = value
    return flat


def packed(codec: str, flat: Flat) -> Encoded:
    return CODECS.create(codec).encode(flat, TABLE)


@pytest.mark.parametrize("codec", ["identity", "rows"])
@pytest.mark.parametrize(
    ("aggregation", "alone", "shared"), [("mean", 0.25, 0.75), ("touched", 1.0, 1.5), ("sum", 1.0, 3.0)]
)
def test_a_row_sent_by_one_of_four_workers_is_averaged_as_configured(
    codec: str, aggregation: Any, alone: float, shared: float
) -> None:
    server = shard()
    before = weights_of(server)
    given = [gradient(5, 41), gradient(7, value=2) + gradient(5, value=2), gradient(9), gradient()]
    _, applied = server.update(*(packed(codec, each) for each in given), aggregation=aggregation)
    moved = (before - weights_of(server)) / 0.5
    expected = gradient(5, value=shared) + gradient(41, 9, value=alone) + gradient(7, value=2 * alone)
    assert moved == pytest.approx(expected, abs=1e-6)
    assert applied.gradients == 4


@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize("left_out", ["not finite", "rejected"])
def test_the_weights_of_the_gradients_that_count_have_mean_one(reached: bool, left_out: str) -> None:
    """Two workers with 90 and 10 samples; the first one is left out."""
    plain, weighted = shard(), shard()
    good = gradient(5, 41, value=2.0)
    plain.update(packed("identity", good), reached=reached)
    bad = Rejected(0, 0, "its loss is NaN") if left_out == "rejected" else packed("identity", gradient(3, value=np.nan))
    weighted.update(bad, packed("identity", np.float32(0.2) * good), reached=reached, shares=[1.8, 0.2])
    np.testing.assert_allclose(weights_of(weighted), weights_of(plain), rtol=1e-6)


@pytest.mark.parametrize("aggregation", WAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(seed=st.integers(0, 2**32 - 1), workers=st.integers(1, 4), steps=st.integers(1, 3))
@settings(max_examples=6, deadline=None)
def test_sparse_rows_and_dense_vectors_give_equal_results(
    optimizer: str, aggregation: Any, seed: int, workers: int, steps: int
) -> None:
    rng = np.random.default_rng(seed)
    dense, sparse = shard(optimizer), shard(optimizer)
    for _ in range(steps):
        given = [rng.standard_normal(TABLE.size).astype(np.float32) for _ in range(workers)]
        for each in given:
            TABLE.rows.multiply(each, (rng.random(TABLE.rows.rows) < 0.2).astype(np.float32))
        for server, codec in ((dense, "identity"), (sparse, "rows")):
            server.update(*(packed(codec, each + np.float32(0)) for each in given), aggregation=aggregation)
    assert weights_of(sparse) == pytest.approx(weights_of(dense), rel=1e-6, abs=1e-6)
    for key, value in dense.state()["optimizer"].items():
        assert sparse.state()["optimizer"][key] == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_sparse_and_dense_messages_can_be_mixed() -> None:
    one, other = shard(), shard()
    given = [gradient(3), gradient(3, 8)]
    one.update(packed("rows", given[0]), packed("identity", given[1]))
    other.update(*(packed("identity", each) for each in given))
    assert weights_of(one).tobytes() == weights_of(other).tobytes()


@pytest.mark.parametrize("aggregation", WAYS)
def test_rejected_workers_are_not_counted_in_row_averages(aggregation: Any) -> None:
    one, other = shard(), shard()
    huge = packed("rows", gradient(4, value=3e38))
    _, applied = one.update(packed("rows", gradient(4)), Rejected(2, 0, "NaN"), aggregation=aggregation)
    other.update(packed("rows", gradient(4)), aggregation=aggregation)
    assert weights_of(one).tobytes() == weights_of(other).tobytes()
    assert [each.rank for each in applied.rejected] == [2]
    before = weights_of(one)
    _, applied = one.update(huge, huge, aggregation="sum")  # overflows
    assert applied.gradients == 0
    assert "overflows" in applied.rejected[0].why
    assert weights_of(one).tobytes() == before.tobytes()


def test_an_unknown_aggregation_raises_a_one_line_error() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown aggregation .medium.; did you mean .median.. known: .*, median"
    ) as caught:
        shard().update(packed("rows", gradient(4)), aggregation="medium")
    assert "\n" not in str(caught.value)


def test_a_server_sends_only_requested_rows() -> None:
    server = shard(codec=("rows", {}))
    message = server.rows(np.array([0, 7, 45], np.uint32))
    rows = CODECS.create("rows").rows(message, TABLE.rows)
    assert rows is not None
    assert rows.numbers.tolist() == [0, 7, 45]
    assert rows.values.tolist() == TABLE.rows.gather(weights_of(server), rows.numbers).tolist()
    note, _ = server.update(packed("rows", gradient(7)))
    assert note.nbytes == 0


@pytest.mark.parametrize("wanted", [[3, 2], [3, 3], [50], [[1]]])
def test_invalid_row_numbers_are_rejected(wanted: Any) -> None:
    with pytest.raises(CodecError, match="do not ascend, or are not below 50"):
        shard(codec=("rows", {})).rows(np.array(wanted, np.uint32))


def test_a_checkpoint_split_within_rows_is_rejected() -> None:
    """Older versions split tensors anywhere, so that their shards do not fit the present ones."""
    bounds = TABLE.bounds(2)
    state = ParameterShard(np.zeros(65, np.float32), Layout(("p",), ((65,),)), optimizer=OPTIMIZERS["sgd"]).state()
    begin, end = bounds[:2]
    assert end - begin != 65
    server = ParameterShard(np.zeros(end - begin, np.float32), TABLE.cut(begin, end), optimizer=OPTIMIZERS["sgd"])
    with pytest.raises(ConfigurationError, match="a server with 65 parameters, but the server has 66 now") as caught:
        server.restore(state)
    assert "\n" not in str(caught.value)
