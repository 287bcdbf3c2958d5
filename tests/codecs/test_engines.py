"""Every codec with every strategy that sends gradients or changes of weights, on every engine; same seed, same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.codecs.codec import CODECS
from chimera.codecs.error_feedback import ErrorFeedback
from chimera.core.engine import ENGINES, Engine
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.models.conversion import build_model
from chimera.strategies.strategy import STRATEGIES
from chimera.testing.training import create, needs_batch_norm, train
from chimera.training.artifacts.cost import Cost
from chimera.training.experiment.resolve import open_engine, preload_of, split_of
from codecs_kit import SETUPS

ROUNDS = 6
SYNCHRONOUS = [{"name": "parameter-server", "shards": 2}, {"name": "double-buffering"}]
OTHERS = [
    {"name": "async-parameter-server"},
    {"name": "stale-synchronous"},
    {"name": "delay-compensated"},
    {"name": "fed-buff", "local_steps": 2},
    {"name": "parameter-server", "quorum": 0.5},
]
NAMES = [entry.name for entry in CODECS.entries()]
ON_RAY = [SYNCHRONOUS[0], OTHERS[0]]  # each run starts four processes of Ray, which takes seconds
PACKING = [e.name for e in STRATEGIES.entries() if e.available and create(e.name).sends in ("messages", "peers")]


def setup_of(codec: str) -> dict[str, Any]:
    return next(setup for setup in SETUPS.values() if setup["name"] == codec)


def on_its_way(setup: dict[str, Any]) -> dict[str, Any]:
    """Return the codecs of both ways: the one under test on the uplink, unless it is for the downlink alone."""
    return {"name": "identity", "downlink": setup} if CODECS.of(setup).chained else setup


def fit(folder: Path, engine: str | Engine, codec: str, strategy: dict[str, Any]) -> Any:
    return chimera.train(
        "mlp",
        "digits",
        engine=engine,
        codec=on_its_way(setup_of(codec)),
        strategy=strategy,
        workers=2,
        batch_size=16,
        rounds=ROUNDS,
        optimizer={"name": "sgd", "lr": 0.05},
        out=folder,
    )


@cache
def in_virtual_time(codec: str, strategy: str, **options: Any) -> tuple[Any, Cost]:
    with TemporaryDirectory() as folder:
        run = fit(Path(folder) / "run", "simulated", codec, {"name": strategy, **options})
        return run.trained.parameters().copy(), run.cost


def label(strategy: dict[str, Any]) -> str:
    return " ".join(map(str, strategy.values()))


def goes_with(strategy: str, codec: str) -> bool:
    """Return False for rejected pairs: a codec of weights without a downlink, and two residuals of the same vector."""
    subject, made_codec = create(strategy), CODECS.of(setup_of(codec))
    return not (made_codec.chained and subject.sends == "peers") and not (made_codec.carries and subject.carries)


@dataclass(frozen=True)
class Outcome:
    """The result of a short run of a strategy with a codec."""

    weights: Flat
    loss: float
    cost: Cost


@cache
def outcome(strategy: str, codec: str) -> Outcome:
    setup = PAIRED.get(codec) or setup_of(codec)
    with TemporaryDirectory() as folder:
        run = train(strategy, Path(folder) / "run", codec=on_its_way(setup), rounds=4, evaluate_every=4)
        return Outcome(run.trained.parameters().copy(), run.metrics["loss"], run.cost)


@cache
def loss_before(batch_norm: bool) -> float:
    """Return the loss of the model of `train` before the first round."""
    about: dict[str, Any] = {"input_shape": (64,), "outputs": 10, "task": "classification"}
    model = build_model("mlp", {"hidden": [16, 16], "batch_norm": batch_norm}, seed=5, **about)
    test = split_of("digits", 5).test
    return model.evaluate((test.inputs, test.targets))["loss"]


PAIRED: dict[str, dict[str, Any]] = {"threshold": {"name": "threshold", "value": 0.01}}
"""Setups for pairs alone: none of these gradients has an element of 1."""
SAME_BITS = {"rows": "identity", "lossless": "terngrad", "layer-wise": "int8"}
"""What the first of two loses nothing of is what the second says; none of the layers of the setup is in this network."""
PLACE_BITS = 11
"""Of the place of one element among 2048; this network has 1482."""
STATED_BITS = {
    "identity": 32, "rows": 32, "cast": 16, "natural": 9, "int8": 8, "layer-wise": 8,
    "qsgd": 4, "adaptive": 4, "nonuniform": 4,  # 4 levels on each side of 0; of two codecs the finer one; 8 levels and a sign
    "terngrad": 2, "lossless": 2, "loss-aware": 2, "sign": 1, "onebit": 1, "binary": 1,
    "top-k": 0.01 * (32 + PLACE_BITS), "error-feedback": 0.05 * (32 + PLACE_BITS), "random-k": 0.1 * 32,
    "dgc": 0.25 * (32 + PLACE_BITS),  # its first message
    "powersgd": 32 * (2 * (80 + 32 + 26) + 42) / 1482,  # rank 2 of 64 x 16, 16 x 16 and 16 x 10, and three vectors
    "threshold": 32, "delta": 32,  # as many elements as there are; the downlink is checked separately
}  # fmt: skip
TENSORS, HEADER_BYTES = 6, 32
ALLOWANCE_BITS = 8 * TENSORS * HEADER_BYTES / 1482
"""For scales, lengths and counts of the tensors of one message."""
ENCLOSES = {"scaffold": 0.5}
"""The share of what is sent that goes beside the codec: the change of the control variate."""
SMALL = {"streaming-diloco", "coded-distributed-computing"}
"""What sends pieces, of which headers are a large part, or combinations of messages, which are longer than one of them."""


def bits_up(found: Outcome) -> float:
    return 8 * found.cost.packed_up / found.cost.elements_up


def faults_of(strategy: str, codec: str) -> Iterator[str]:
    """Yield the defects of a pair."""
    plain, found = outcome(strategy, "identity"), outcome(strategy, codec)
    if not np.isfinite(found.weights).all() or found.cost.rounds != 4:
        yield "it does not end well"
    if not found.loss < loss_before(needs_batch_norm(create(strategy))):
        yield f"its loss does not fall: {found.loss}"
    if found.cost.elements_up != plain.cost.elements_up:
        yield f"it counts {found.cost.elements_up} elements, not {plain.cost.elements_up}"
    other = SAME_BITS.get(codec)
    if other is not None and found.weights.tobytes() != outcome(strategy, other).weights.tobytes():
        yield f"its weights are not those of {other}"
    if other != "identity" and codec != "identity" and np.array_equal(found.weights, plain.weights):
        yield "it is lossy, and changes nothing"
    enclosed = ENCLOSES.get(strategy, 0.0)
    most = (1 - enclosed) * STATED_BITS[codec] + 32 * enclosed + ALLOWANCE_BITS
    if bits_up(found) > (bits_up(plain) if strategy in SMALL else most):
        yield f"an element takes {bits_up(found):.2f} bits, more than {most:.2f}"
    if STATED_BITS[codec] < 32 and not bits_up(found) < bits_up(plain):
        yield "it saves nothing"
    if CODECS.of(setup_of(codec)).chained:
        if found.cost.packed_up != plain.cost.packed_up:
            yield "a codec for the downlink changes the uplink"
        if not found.cost.packed_down < plain.cost.packed_down:
            yield "it saves nothing on the downlink"


FORGETS = {"coded-distributed-computing"}
"""Strategies that create codecs again for each part of each block, see docs/explanation/redundant-work.md."""
ONCE = {"streaming-diloco"}
"""What does not come to the same codec twice in four rounds."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Check each message with error feedback; return the number of messages of each codec.

    Decoded + memory is the vector + the memory before, and no memory is lost meanwhile. All are float32: the sum and the
    difference are rounded once each, by at most 2**-24 of what they are.
    """
    memories: dict[int, tuple[ErrorFeedback, Flat]] = {}
    encode = ErrorFeedback.encode
    count: Counter[int] = Counter()

    def watched(codec: ErrorFeedback, vector: Flat, layout: Layout) -> Encoded:
        _, before = memories.get(id(codec), (codec, np.zeros_like(vector)))
        np.testing.assert_array_equal(before, np.zeros_like(vector) if codec.memory is None else codec.memory)
        total = vector.astype(np.float64) + before
        encoded = encode(codec, vector, layout)
        assert codec.memory is not None
        said = codec.decode(encoded).astype(np.float64)
        assert (np.abs(said + codec.memory - total) <= 2**-23 * (np.abs(total) + np.abs(said))).all()
        memories[id(codec)] = codec, codec.memory.copy()
        count[id(codec)] += 1
        return encoded

    monkeypatch.setattr(ErrorFeedback, "encode", watched)
    return count


@pytest.mark.sampled(1, always=["d-psgd", "gossip-sgd", "parameter-server"])
@pytest.mark.parametrize("strategy", PACKING)
@pytest.mark.takes("it trains once with each codec")
def test_each_codec_keeps_its_promises_on_the_simulated_engine(strategy: str, told: Counter[int]) -> None:
    fitting = [codec for codec in NAMES if goes_with(strategy, codec)]
    assert len(fitting) >= len(NAMES) - 5  # those for a downlink, and those that carry what is left out
    wrong = {codec: found for codec in fitting if (found := list(faults_of(strategy, codec)))}
    outcome.cache_clear()
    assert not wrong
    least = 0 if create(strategy).carries else 1 if strategy in FORGETS | ONCE else 2
    assert max(told.values(), default=0) >= least


@pytest.mark.parametrize(
    "engine", [pytest.param("local", marks=pytest.mark.long), pytest.param("ray", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("strategy", PACKING)
def test_every_strategy_trains_with_packed_messages_between_processes(
    strategy: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened = request.getfixturevalue(engine)
    run = train(strategy, tmp_path / "run", engine=opened, codec="qsgd", rounds=4, evaluate_every=4)
    assert np.isfinite(run.trained.parameters()).all()
    assert 0 < run.cost.packed_up < run.cost.elements_up * 4


@pytest.fixture
def local() -> Iterator[Engine]:
    """Give an engine to the runs of one test."""
    engine, _ = open_engine("local", preload_of(codecs=NAMES))
    with engine:
        yield engine


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    """Give one engine to all tests: a session of Ray takes long to start."""
    if not ENGINES.find("ray").available:
        pytest.skip("Ray is not installed: pip install 'chimera-dml[ray]'")
    with ENGINES.create("ray") as engine:
        yield engine


@pytest.mark.long
@pytest.mark.parametrize("codec", NAMES)
def test_local_sends_the_same_messages(tmp_path: Path, local: Engine, codec: str) -> None:
    for strategy in SYNCHRONOUS:
        check_the_same_is_sent(tmp_path / label(strategy), local, codec, strategy)


@pytest.mark.long
@pytest.mark.parametrize("codec", NAMES)
def test_codecs_train_on_local(tmp_path: Path, local: Engine, codec: str) -> None:
    for strategy in OTHERS:
        check_it_trains(tmp_path / label(strategy), local, codec, strategy)


@pytest.mark.slow
@pytest.mark.parametrize("codec", NAMES)
def test_ray_sends_the_same_messages_and_trains(tmp_path: Path, ray: Engine, codec: str) -> None:
    synchronous, asynchronous = ON_RAY
    check_the_same_is_sent(tmp_path / label(synchronous), ray, codec, synchronous)
    check_it_trains(tmp_path / label(asynchronous), ray, codec, asynchronous)


def check_the_same_is_sent(folder: Path, engine: Engine, codec: str, strategy: dict[str, Any]) -> None:
    """Check that a run has the same traffic and weights as in virtual time."""
    run = fit(folder, engine, codec, strategy)
    expected, cost = in_virtual_time(codec, strategy["name"], **{k: v for k, v in strategy.items() if k != "name"})
    assert run.cost.elements_up == cost.elements_up
    # rounding in the last bit may move an element over a threshold
    assert run.cost.packed_up == pytest.approx(cost.packed_up, rel=0.02)
    assert run.cost.packed_down == pytest.approx(cost.packed_down, rel=0.02)
    np.testing.assert_allclose(run.trained.parameters(), expected, atol=1e-5)


def check_it_trains(folder: Path, engine: Engine, codec: str, strategy: dict[str, Any]) -> None:
    run = fit(folder, engine, codec, strategy)
    assert np.isfinite(run.trained.parameters()).all()
    assert run.cost.rounds == ROUNDS
