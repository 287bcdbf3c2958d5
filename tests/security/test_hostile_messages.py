"""Tests of hostile messages: decoding rejects them, and servers continue without them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from chimera.codecs.codec import CODECS, decode, rows_of
from chimera.core.errors import DataError, PrivacyError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.partition import PARTITIONERS
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model
from chimera.training.messages.message_key import Key, keyed
from chimera.training.messages.rejection import Applied, Rejected
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.learner import Learner

SHAPES = ((8, 8), (16,))
LAYOUT = Layout(("w", "b"), SHAPES)
SIZE = 80
GRADIENT = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
BAD_NUMBERS = (0, -1, 2**31, 2**62, math.nan, math.inf, -math.inf, 1e300, 0.5)


@cache
def message_of(name: str) -> Encoded:
    """Return a message of a codec, encoded in a test: during collection, each process would load or compile all kernels."""
    return CODECS.create(name).encode(GRADIENT.copy(), LAYOUT)


def mangled(message: Encoded, rng: np.random.Generator) -> Iterator[Encoded]:
    """Yield messages that differ from one in an array, a scalar or the size."""
    codec, size, arrays, meta = message.codec, message.size, message.arrays, dict(message.meta)
    yield Encoded(codec, size, (), meta)
    yield Encoded(codec, size, (*arrays, np.zeros(3, np.float32)), meta)
    yield Encoded(codec, size, arrays[::-1], meta)
    yield Encoded(codec, size, arrays, {})
    for other in (0, -1, 1 << 30, 1 << 62):
        yield Encoded(codec, other, arrays, meta)
    for key in meta:
        for number in BAD_NUMBERS:
            yield Encoded(codec, size, arrays, meta | {key: number})
    for place, array in enumerate(arrays):
        replaced: list[Any] = [
            array[:-1], array[:0], np.concatenate([array.reshape(-1)] * 3), array.reshape(1, *array.shape),
            array.astype(np.float64), array.astype(np.int8), array.astype(object), np.array(7),
            np.frombuffer(b"\xff" * array.nbytes, array.dtype).reshape(array.shape),
        ]  # fmt: skip
        for _ in range(12):
            noise = np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
            replaced.append(noise)
            few = bytearray(array.tobytes())
            if few:
                few[rng.integers(len(few))] ^= 1 << rng.integers(8)
            replaced.append(np.frombuffer(bytes(few), array.dtype).reshape(array.shape))
        for other in replaced:
            yield Encoded(codec, size, (*arrays[:place], other, *arrays[place + 1 :]), meta)


@pytest.mark.parametrize("name", sorted(entry.name for entry in CODECS.entries()))
def test_a_mangled_message_is_decoded_to_its_size_or_rejected(name: str) -> None:
    for each in mangled(message_of(name), np.random.default_rng(1)):
        try:
            with np.errstate(all="ignore"):
                vector = decode(each, SIZE)
        except DataError:
            continue
        assert (vector.shape, vector.dtype) == ((SIZE,), np.float32)


@pytest.mark.parametrize("name", sorted(entry.name for entry in CODECS.entries()))
def test_rows_of_a_mangled_message_fit_the_layout_or_are_rejected(name: str) -> None:
    for each in mangled(message_of(name), np.random.default_rng(2)):
        try:
            rows = rows_of(each, LAYOUT.rows)
        except DataError:
            continue
        assert rows is None or LAYOUT.rows.filled(rows).shape == (SIZE,)


def wrong_messages(vector: Flat) -> dict[str, Any]:
    """Return messages that no codec encodes, by their defect."""
    size = len(vector)
    return {
        "nothing": None,
        "a list": [Encoded("identity", size, (vector,))],
        "an array": vector,
        "another size": Encoded("identity", size - 1, (vector[:-1],)),
        "a short array": Encoded("identity", size, (vector[:-1],)),
        "an unknown codec": Encoded("nothing-like-it", size, (vector,)),
        "a codec by path": Encoded("os:system", size, (vector,)),
        "no array": Encoded("top-k", size, ()),
        "NaN": Encoded("identity", size, (np.full(size, np.nan, np.float32),)),
    }


WRONG = wrong_messages(GRADIENT)


@pytest.mark.parametrize("rule", ["mean", "median", "krum", "trimmed-mean"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_server_steps_without_undecodable_messages(wrong: str, rule: str) -> None:
    def server() -> ParameterShard:
        return ParameterShard(np.zeros(SIZE, np.float32), LAYOUT, optimizer=OptimizerSettings("sgd", {"lr": 1.0}))

    good = [Encoded("identity", SIZE, (GRADIENT * factor,)) for factor in range(1, 7)]
    want, _ = server().update(*good, aggregation=rule)
    wanted = want.arrays[0].copy()
    got, applied = server().update(*good[:2], WRONG[wrong], *good[2:], aggregation=rule)
    np.testing.assert_array_equal(got.arrays[0], wanted)
    assert applied.gradients == 6
    (rejected,) = applied.rejected
    assert isinstance(rejected, Rejected)
    assert "gradient 3 of 7" in rejected.why
    assert "\n" not in rejected.why


@pytest.mark.parametrize("wrong", [*WRONG, "no key"])
def test_undecodable_blocks_are_missing_and_their_copies_are_used(wrong: str) -> None:
    def server() -> ParameterShard:
        return ParameterShard(np.zeros(SIZE, np.float32), LAYOUT, optimizer=OptimizerSettings("sgd", {"lr": 1.0}))

    good = [keyed(Encoded("identity", SIZE, (GRADIENT * (block + 1),)), Key(0, 0, block, block)) for block in range(2)]
    message = WRONG.get(wrong, Encoded("identity", SIZE, (GRADIENT,), {"key_step": math.nan}))
    shares = {0: 0.5, 1: 0.5}
    want, _ = server().combine(*good, shares=shares, step=0)
    got, applied = server().combine(message, *good, shares=shares, step=0)
    np.testing.assert_array_equal(decode(got, SIZE), decode(want, SIZE))
    assert applied.gradients == 2
    got, applied = server().combine(message, good[0], shares=shares, step=0)
    assert (applied.gradients, len(applied.rejected)) == (0, 1)
    assert "blocks 1" in applied.rejected[0].why


@pytest.mark.parametrize("wrong", [*WRONG, "words of another type", "too few words"])
def test_a_malformed_masked_update_is_rejected_with_its_index(wrong: str) -> None:
    privacy = Privacy(clip=1.0, secure_aggregation=True)
    kind = privacy.code(3).words
    right = Encoded("masked", SIZE, (np.zeros(SIZE, kind),))
    others = {
        "words of another type": Encoded("masked", SIZE, (np.zeros(SIZE, np.int8),)),
        "too few words": Encoded("masked", SIZE, (np.zeros(SIZE - 1, kind),)),
    }
    server = ParameterShard(
        np.zeros(SIZE, np.float32), LAYOUT, optimizer=OptimizerSettings("sgd", {"lr": 1.0}), privacy=privacy
    )
    server.expect(3, 3, 1.0, 0, np.zeros((3, 64), np.uint8))
    with pytest.raises(PrivacyError, match=r"^update 2 came without masks"):
        server.update(right, others[wrong] if wrong in others else WRONG[wrong], right)


@cache
def digits() -> Dataset:
    return DATASETS.create("digits").train


def neighbour(rank: int = 0) -> Learner:
    train = digits()
    model = build_model(
        "mlp", {"hidden": [4]}, seed=rank, input_shape=train.input_shape, outputs=train.outputs, task=train.task
    )
    order = orders(PARTITIONERS.create("iid"), train, 3, 8, 0)[rank]
    return Learner(rank, model, train, order, optimizer=OptimizerSettings("sgd", {"lr": 0.1}), extensions=("gossip",))


def one_step(call: str, wrong: str = "") -> tuple[Flat, Applied]:
    """Return the model of a worker after a step and its report: one neighbour sends its model, the other an invalid message.

    Where nothing is wrong, it sends a model like the worker's own, or no difference.
    """
    worker, other = neighbour(), neighbour(1).message()
    still = Encoded("identity", other.size, (np.zeros(other.size, np.float32),))
    right = still if call == "move_and_step" else neighbour().message()
    message = wrong_messages(still.arrays[0])[wrong] if wrong else right
    if call == "mix_and_step":
        row = [(0, 0.5), (1, 0.25), (2, 0.25)]
        *_, applied = worker.mix_and_step(row, message, other)
    elif call == "track_and_step":
        row = [(0, 0.5), (1, 0.25), (2, 0.25)]
        worker.track([0, 1, 2])
        own, tracker = worker.tracked_messages()
        *_, applied = worker.track_and_step(row, message, other, tracker, tracker)
    elif call == "move_and_step":
        worker.know([0, 1, 2], [0, 1, 2])
        worker.difference()
        *_, applied = worker.move_and_step([(0, 0.5), (1, 0.25), (2, 0.25)], 0.5, message, other)
    else:
        computed = worker.compute()
        own = worker.message()
        worker.approach(own, message)
        *_, applied = worker.step_computed(computed)
    return decode(worker.weights(), other.size).copy(), applied


@pytest.mark.parametrize("call", ["mix_and_step", "track_and_step", "move_and_step", "approach"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_worker_continues_without_undecodable_messages_of_neighbours(wrong: str, call: str) -> None:
    got, applied = one_step(call, wrong)
    want, undisturbed = one_step(call)
    np.testing.assert_allclose(got, want, atol=1e-7)
    assert (applied.step, applied.gradients, undisturbed.rejected) == (1, 1, ())
    (rejected,) = applied.rejected
    assert rejected.rank == 0
    assert "neighbours is left out" in rejected.why
    assert "\n" not in rejected.why


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong != "NaN"])  # evaluations show that
def test_the_mean_of_workers_uses_decodable_models_only(wrong: str) -> None:
    worker, models = neighbour(), [neighbour(rank).weights() for rank in range(3)]
    want = worker.mean(*models).arrays[0].copy()
    message = wrong_messages(want)[wrong]
    np.testing.assert_array_equal(worker.mean(*models, message).arrays[0], want)
    assert worker.consensus_distance(*models, message) == worker.consensus_distance(*models) > 0
