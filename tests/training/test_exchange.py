"""Tests of messages between workers and servers, and of the state of their codecs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from torch import nn

from chimera.codecs.codec import CODECS, decode
from chimera.codecs.held import Held
from chimera.core.errors import CodecError
from chimera.core.parameters import Layout
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.partition import PARTITIONERS
from chimera.models.torch_model import TorchModel
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.exchange import Exchange
from chimera.training.worker.learner import Learner

LAYOUT = Layout(("weight", "bias"), ((4, 3), (4,)))
LOSSY = ("error-feedback", {"codec": {"name": "top-k", "ratio": 0.25}})


def weights(shards: int) -> list:
    bounds = LAYOUT.bounds(shards)
    pieces = [LAYOUT.cut(begin, end) for begin, end in itertools.pairwise(bounds)]
    codec = CODECS.create("identity", {})
    return [codec.pack(np.zeros(piece.size, np.float32), piece) for piece in pieces]


def test_restored_codec_states_are_kept_before_the_first_message() -> None:
    sends = Exchange(LAYOUT, LOSSY, seed=1)
    sends.load(weights(2), np.zeros(LAYOUT.size, np.float32))
    sends.packed(np.arange(LAYOUT.size, dtype=np.float32))
    remembered = sends.states()
    assert len(remembered) == 2
    idle = Exchange(LAYOUT, LOSSY, seed=1)
    assert idle.states() == []
    idle.restore(remembered)
    for kept, held in zip(idle.states(), remembered, strict=True):
        assert kept.keys() == held.keys()
        assert all(np.array_equal(kept[key], held[key]) for key in held)


def test_a_cached_message_is_checked_and_decoded_as_the_first_time() -> None:
    values = np.arange(LAYOUT.size, dtype=np.float32)
    message = CODECS.create("identity", {}).pack(values, LAYOUT)
    for _ in range(2):
        flat = np.zeros(LAYOUT.size, np.float32)
        at_hand = Exchange(LAYOUT, LOSSY, seed=1).load([message], flat)
        assert at_hand is not None
        assert np.array_equal(at_hand, values)
        assert np.array_equal(flat, values)
        assert not np.shares_memory(at_hand, flat)
    other = Layout(("weight",), ((5,),))
    with pytest.raises(CodecError, match="16 elements came where 5 are expected"):
        Exchange(other, LOSSY, seed=1).load([message], np.zeros(5, np.float32))


def test_messages_with_history_are_decoded_by_each_receiver() -> None:
    sender, receivers = CODECS.create("delta", {"codec": "int8"}), [Exchange(LAYOUT, LOSSY, seed=i) for i in range(3)]
    held, rng = Held(), np.random.default_rng(1)
    for _ in range(4):
        message, held = sender.encode_for(held, rng.normal(size=LAYOUT.size).astype(np.float32), LAYOUT)
        loaded = [np.zeros(LAYOUT.size, np.float32) for _ in receivers]
        for receiver, flat in zip(receivers, loaded, strict=True):
            receiver.load([message], flat)
            assert np.array_equal(flat, held.value)


def one_of(rank: int, codec: tuple[str, dict[str, Any]], dropout: float = 0.0) -> Any:
    """Return a worker; all ranks have one model, one order of one data set, and one seed."""
    rng = np.random.default_rng(0)
    data = Dataset(rng.normal(size=(64, 20)).astype(np.float32), rng.integers(0, 3, 64))
    order = orders(PARTITIONERS.create("iid"), data, 1, 16, 0)[0]
    layers = lambda: nn.Sequential(nn.Linear(20, 200), nn.Dropout(dropout), nn.Linear(200, 3))  # noqa: E731
    sgd = OptimizerSettings("sgd", {"lr": 0.1})
    return Learner(
        rank, TorchModel(layers, seed=1), data, order, optimizer=sgd, codec=codec, seed=7, extensions=("gossip",)
    )


def drawn_by(rank: int, codec: tuple[str, dict[str, Any]], dropout: float) -> np.ndarray:
    """Return the first gradient that a worker sends."""
    worker = one_of(rank, codec, dropout)
    message = worker.gradient(worker.weights())
    return decode(message[0], message[0].size).copy()


def model_of(rank: int, codec: tuple[str, dict[str, Any]]) -> np.ndarray:
    """Return the model that a worker sends its neighbours before the first step."""
    message = one_of(rank, codec).message()
    return decode(message, message.size).copy()


ROUNDS_AT_RANDOM = ("int8", {"stochastic": True})


def check_independent(one: np.ndarray, other: np.ndarray) -> None:
    """Check that two rounding errors are uncorrelated, so that the error of a mean of N falls with N."""
    correlation = np.corrcoef(one, other)[0, 1]
    assert abs(correlation) < 5 / np.sqrt(one.size)  # five standard errors of the correlation of independent draws


def test_ranks_draw_independent_rounding() -> None:
    exact = drawn_by(0, ("identity", {}), dropout=0.0)
    errors = [drawn_by(rank, ROUNDS_AT_RANDOM, dropout=0.0) - exact for rank in (0, 1, 0)]
    np.testing.assert_array_equal(errors[0], errors[2])
    check_independent(errors[0], errors[1])


def test_neighbours_draw_independent_rounding() -> None:
    exact = model_of(0, ("identity", {}))
    errors = [model_of(rank, ROUNDS_AT_RANDOM) - exact for rank in (0, 1, 0)]
    np.testing.assert_array_equal(errors[0], errors[2])
    check_independent(errors[0], errors[1])


def test_shards_of_a_worker_draw_independent_rounding() -> None:
    layout, half = Layout(("a", "b"), ((4000,), (4000,))), np.random.default_rng(0).normal(size=4000)
    exact = np.concatenate([half, half]).astype(np.float32)
    sends = Exchange(layout, ROUNDS_AT_RANDOM, seed=1)
    sends.cut(2)
    first, second = [decode(message, message.size) for message in sends.packed(exact)]
    check_independent(first - exact[:4000], second - exact[4000:])


def test_ranks_draw_different_dropout_masks() -> None:
    """Dropout draws from seed, rank and step: two ranks with one batch get two masks, and each rank the same one again."""
    gradients = [drawn_by(rank, ("identity", {}), dropout=0.5) for rank in (0, 1, 0)]
    np.testing.assert_array_equal(gradients[0], gradients[2])
    assert not np.allclose(gradients[0], gradients[1], atol=1e-6)
