"""The promises of every codec (docs/architecture.md, section 5), one test for each: see `chimera.testing`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.codecs.codec import CODECS, Codec, decode_with
from chimera.codecs.held import Held
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.testing.messages import damaged, hard_vectors, kept, layout_of, same
from chimera.testing.training import InterruptAt, InterruptedRunError, train, weights

VECTORS = hard_vectors()
NORMAL = VECTORS["normal"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test for every codec of ``--codec``."""
    metafunc.parametrize("codec", metafunc.config.getoption("codec", default=None) or [])


def create(codec: str, seed: int = 7) -> Codec:
    """Return a codec with its default options."""
    return CODECS.create(codec, seed=seed)


def sent(codec: str, vector: Flat) -> Encoded:
    """Return the first message of a new codec for a vector."""
    return kept(create(codec).encode(vector.copy(), layout_of(vector.size)))


def received(message: Encoded, size: int, out: Flat | None = None) -> Flat:
    """Decode a message as a receiver that has no other message."""
    return decode_with(Held(), message, size, out)[0]


def identical(one: Any, other: Any) -> bool:
    """Return whether two vectors have the same bits. pytest describes each different byte if an assertion compares bytes."""
    return bool(one.tobytes() == other.tobytes())


def fit(codec: str, folder: Path, **options: Any) -> Any:
    """Train on the digits in virtual time with this codec on the uplink."""
    if create(codec).chained:
        pytest.skip("its messages build on one another: it is for the downlink only")
    return train("parameter-server", folder, codec={"name": codec, "error_feedback": True}, **options)


def test_its_docstring_describes_it(codec: str) -> None:
    """`chimera list codecs` shows the first line of the docstring."""
    assert len(CODECS.find(codec).summary) > 20, "the first line of its docstring describes it"


@pytest.mark.parametrize("vector", VECTORS)
def test_hard_vectors_are_encoded_and_decoded(codec: str, vector: str) -> None:
    """A decoded vector is finite float32 of the same length, also at the limits of float32; `encode` changes no input."""
    before, given = VECTORS[vector], VECTORS[vector].copy()
    decoded = received(create(codec).encode(given, layout_of(given.size)), given.size)
    assert decoded.shape == before.shape
    assert decoded.dtype == np.float32
    assert np.isfinite(decoded).all()
    assert identical(given, before), "encode changed its argument"


def test_a_message_is_arrays_and_numbers(codec: str) -> None:
    """Messages consist of arrays and numbers: engines send and count nothing else."""
    message = sent(codec, NORMAL)
    assert message.size == NORMAL.size
    assert all(isinstance(each, np.ndarray) and each.dtype != object for each in message.arrays)
    assert all(isinstance(value, int | float) for value in message.meta.values())


def test_equal_seeds_give_equal_messages(codec: str) -> None:
    """Random numbers come from the seed of the codec only, so that a run can be repeated."""
    one, other = create(codec), create(codec)
    for _ in range(3):
        assert same(*(each.encode(NORMAL, layout_of(NORMAL.size)) for each in (one, other)))


def test_decoding_is_stateless(codec: str) -> None:
    """A receiver decodes messages in any order, repeatedly, and with an object that has encoded nothing."""
    sender, layout = create(codec), layout_of(NORMAL.size)
    messages = [kept(sender.encode(NORMAL * np.float32(i + 1), layout)) for i in range(1 if sender.chained else 3)]
    expected = [received(message, NORMAL.size).copy() for message in messages]
    create(codec, seed=8)  # from now on, this object decodes
    memory = np.full(NORMAL.size, 7, np.float32)
    for message, vector in reversed(list(zip(messages, expected, strict=True))):
        assert identical(received(message, NORMAL.size), vector)
        found = received(message, NORMAL.size, memory)
        assert identical(found, vector)
        held = any(np.shares_memory(found, array) for array in message.arrays)
        assert found is memory or held, "decode has to write into `out`, unless the message already holds the vector"


def test_a_restored_codec_sends_the_same_messages(codec: str) -> None:
    """`state` has everything on which the next messages depend: a resumed run sends the same bytes."""
    sender, layout = create(codec), layout_of(NORMAL.size)
    for i in range(2):
        sender.encode(NORMAL * np.float32(i + 1), layout)
    state = {name: value.copy() for name, value in sender.state().items()}
    later = create(codec)
    later.restore(state)
    for _ in range(2):
        assert same(sender.encode(NORMAL, layout), later.encode(NORMAL, layout))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_not_hidden(codec: str, bad: float) -> None:
    """`encode` raises CodecError for NaN and infinity, or the receiver gets values that are not finite."""
    vector = NORMAL.copy()
    vector[::2] = bad
    try:
        message = sent(codec, vector)
    except CodecError:
        return
    assert not np.isfinite(received(message, vector.size)).all(), "a gradient with NaN would look like a valid one"


def test_a_shortened_message_is_rejected(codec: str) -> None:
    """`decode` raises CodecError for a message that lacks an array, or the end of an array."""
    message = sent(codec, NORMAL)
    for which, array in enumerate(message.arrays):
        before, after = message.arrays[:which], message.arrays[which + 1 :]
        for rest in ([array[:-1]] if array.size else [], []):
            with pytest.raises(CodecError):
                received(Encoded(message.codec, message.size, (*before, *rest, *after), message.meta), NORMAL.size)


def test_a_damaged_message_is_an_error_or_a_vector(codec: str) -> None:
    """`decode` checks the message: a wrong one raises CodecError, and nothing else, or is a vector of the right length."""
    rng = np.random.default_rng(3)
    for size in (1, 9, 1234, 9000):
        message = sent(codec, NORMAL[:size])
        for _ in range(100):
            try:
                decoded = received(damaged(message, rng), size)
            except CodecError:
                continue
            assert decoded.shape == (size,)
            assert decoded.dtype == np.float32


def test_a_run_with_error_feedback_learns(codec: str, tmp_path: Path) -> None:
    """Eight epochs with the codec and error feedback give an accuracy far above chance, which is 0.1."""
    run = fit(codec, tmp_path / "run", rounds=240, evaluate_every=240)
    assert run.events == []
    assert run.metrics["accuracy"] > 0.6


def test_a_resumed_run_equals_an_uninterrupted_one(codec: str, tmp_path: Path) -> None:
    """Another process resumes from a checkpoint to the same bits, and sends the same number of bytes."""
    cadence = {"checkpoint_every": 2, "rounds": 8, "evaluate_every": 8}
    whole = fit(codec, tmp_path / "whole", **cadence)
    with pytest.raises(InterruptedRunError):
        fit(codec, tmp_path / "cut", callbacks=[InterruptAt(5)], **cadence)
    resumed = fit(codec, tmp_path / "cut", resume=True, **cadence)
    assert np.array_equal(weights(resumed), weights(whole))
    assert resumed.cost == whole.cost


@pytest.mark.long
def test_processes_give_the_same_weights(codec: str, tmp_path: Path) -> None:
    """Messages between processes give the result of virtual time."""
    here = fit(codec, tmp_path / "here")
    there = fit(codec, tmp_path / "there", engine="local")
    np.testing.assert_allclose(weights(there), weights(here), atol=2e-6)
