"""Tests of decentralised strategies: they match their papers, keep the state of workers, and tolerate losses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.codecs.codec import CODECS, decode
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.data.assignment import orders
from chimera.data.partition import PARTITIONERS
from chimera.data.split import DATASETS
from chimera.models.conversion import build_model
from chimera.models.model import Model
from chimera.strategies.d_psgd import DPSGD
from chimera.strategies.topologies.topology import topology_of
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.learner import Learner
from training.conftest import Fit
from training.killing import Kill, KilledError

WORKERS, BATCH, ROUNDS, RATE = 5, 8, 12, 0.2
TOP_K = {"name": "top-k", "ratio": 0.1}
LOGISTIC = {"model": "logistic-regression", "batch_size": BATCH, "optimizer": {"name": "sgd", "lr": RATE}}


def replicas(run: chimera.Run) -> dict[str, dict[str, Any]]:
    """Return the state of each worker in the last checkpoint."""
    saved = Checkpoints(str(run.run_dir / "checkpoints")).read_last()
    assert saved is not None
    return saved["cluster"]["replicas"]


def models(run: chimera.Run) -> np.ndarray:
    """Return the model of each worker, shape (workers, P)."""
    return np.stack([held["weights"] for held in replicas(run).values()])


class Reference:
    """The workers' gradients without an engine, for recurrences of whole matrices: shape (workers, P)."""

    def __init__(self, seed: int) -> None:
        train = DATASETS.create("digits").train
        about = {"input_shape": train.input_shape, "outputs": train.outputs, "task": train.task}

        def made() -> Model:
            return build_model("logistic-regression", {}, seed=seed, **about)

        parts = orders(PARTITIONERS.create("iid"), train, WORKERS, BATCH, seed)
        settings = OptimizerSettings("sgd", {"lr": RATE})
        self.workers = [
            Learner(r, made(), train, parts[r], optimizer=settings, seed=seed, extensions=("gossip",))
            for r in range(WORKERS)
        ]
        self.layout = made().layout
        self.start = np.repeat(made().parameters()[None], WORKERS, axis=0)

    def gradients(self, models: np.ndarray) -> np.ndarray:
        """Return the gradients of the next batches."""
        found = []
        for worker, model in zip(self.workers, models, strict=True):
            (message,) = worker.gradient(Encoded("identity", model.size, (model.astype(np.float32),)))
            found.append(decode(message, model.size).copy())
        return np.stack(found)


@pytest.mark.parametrize("topology", ["ring", {"name": "exponential", "one_peer": True}, "star"])
def test_d_psgd_matches_the_recurrence_of_its_paper(fit: Fit, topology: Any) -> None:
    strategy = {"name": "d-psgd", "topology": topology}
    run = fit(strategy=strategy, workers=WORKERS, rounds=ROUNDS, seed=3, evaluate_every=5, **LOGISTIC)
    there, x = Reference(seed=3), topology_of(topology)
    models_now = there.start
    for t in range(ROUNDS):
        models_now = x.mixing(range(WORKERS), t).matrix() @ models_now - RATE * there.gradients(models_now)
    np.testing.assert_allclose(models(run), models_now, atol=2e-6)
    mean = models(run).mean(axis=0)
    np.testing.assert_allclose(run.trained.parameters(), mean, atol=1e-6)
    apart = np.sqrt(((models(run) - mean) ** 2).sum(axis=1).mean())
    assert run.metrics["consensus_distance"] == pytest.approx(apart, rel=1e-3)
    assert apart > 0.01
    assert run.summary()["spectral_gap"] == x.spectral_gap(WORKERS)


def test_gradient_tracking_matches_the_recurrence_of_its_paper(fit: Fit) -> None:
    run = fit(strategy="gradient-tracking", workers=WORKERS, rounds=ROUNDS, seed=3, evaluate_every=5, **LOGISTIC)
    there, w = Reference(seed=3), topology_of("ring").mixing(range(WORKERS), 0).matrix()
    x, y, before = there.start, np.zeros_like(there.start), np.zeros_like(there.start)
    for _ in range(ROUNDS):
        now = there.gradients(x)
        y, before = w @ y + now - before, now
        x = w @ x - RATE * y
    np.testing.assert_allclose(models(run), x, atol=5e-6)
    held = [each["gossip"]["tracking"] for each in replicas(run).values()]
    np.testing.assert_allclose(np.mean([each["tracker"] for each in held], axis=0), before.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("codec", ["identity", TOP_K])
def test_choco_sgd_matches_the_recurrence_of_its_paper(fit: Fit, codec: Any) -> None:
    gamma, strategy = 0.4, {"name": "choco-sgd", "gamma": 0.4}
    run = fit(strategy=strategy, codec=codec, workers=WORKERS, rounds=ROUNDS, seed=3, evaluate_every=50, **LOGISTIC)
    there, w = Reference(seed=3), topology_of("ring").mixing(range(WORKERS), 0).matrix()
    table = {"name": codec} if isinstance(codec, str) else dict(codec)
    packer = CODECS.create(table.pop("name"), table)
    x, public = there.start, there.start.copy()
    for _ in range(ROUNDS):
        half = (x - RATE * there.gradients(x)).astype(np.float32)
        moved = [packer.decode(packer.encode(each, there.layout)).copy() for each in (half - public).astype(np.float32)]
        public = public + np.stack(moved)
        x = half + gamma * (w @ public - public)
    # The run ends between the step and the mixing, which is the beginning of the next round.
    np.testing.assert_allclose(models(run), half, atol=5e-6)


def agree_on_copies(held: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that all public copies of a worker have the same bits."""
    seen: dict[str, Flat] = {}
    for each in held.values():
        for rank, copy in each["gossip"]["copies"].items():
            assert np.array_equal(seen.setdefault(rank, copy), copy)
    assert len(seen) == len(held)


@pytest.mark.parametrize(
    ("faults", "policy"),
    [([], "drop"), (["kill worker 2 at step 7"], "respawn"), (["kill worker 2 at step 7"], "drop")],
)
def test_public_copies_are_equal_on_all_workers_also_after_a_loss(fit: Fit, faults: list[str], policy: str) -> None:
    run = fit(
        strategy="choco-sgd", codec=TOP_K, workers=WORKERS, faults=faults, on_worker_loss=policy, evaluate_every=9
    )
    held = replicas(run)
    assert len(held) == (WORKERS - 1 if faults and policy == "drop" else WORKERS)
    agree_on_copies(held)
    for name, each in held.items():
        own = each["gossip"]["copies"][name.removeprefix("worker ")]
        assert 0 < np.abs(own - each["weights"]).max() < 0.5  # and follow their models


@pytest.mark.parametrize("policy", ["respawn", "drop"])
def test_trackers_follow_the_gradients_of_living_workers(fit: Fit, policy: str) -> None:
    faults = ["kill worker 2 at step 7", "kill worker 0 at step 11"]
    run = fit(strategy="gradient-tracking", workers=WORKERS, faults=faults, on_worker_loss=policy, evaluate_every=9)
    held = [each["gossip"]["tracking"] for each in replicas(run).values()]
    assert len(held) == (3 if policy == "drop" else WORKERS)
    tracked, tracking = (np.mean([each[name] for each in held], axis=0) for name in ("before", "tracker"))
    np.testing.assert_allclose(tracking, tracked, atol=1e-5 * np.abs(tracked).max())


def test_pairwise_averaging_keeps_the_mean() -> None:
    """The requesting worker continues meanwhile: it keeps its later steps, and averages from its weights at the request."""
    asking, asked = Reference(seed=3).workers[:2]
    own, _ = asking.step_computed(asking.compute())
    own = Encoded("identity", own.size, (own.arrays[0].copy(),))
    theirs = Encoded("identity", own.size, (asked.message().arrays[0].copy(),))
    asked.approach(theirs, own)
    further = asking.step_computed(asking.compute())[0].arrays[0] - own.arrays[0]
    asking.approach(own, theirs)
    mean = (own.arrays[0] + theirs.arrays[0]) / 2
    np.testing.assert_allclose(asked.message().arrays[0], mean, atol=1e-7)
    np.testing.assert_allclose(asking.message().arrays[0], mean + further, atol=1e-7)
    assert np.abs(further).max() > 1e-3


NEIGHBOURS: list[Any] = [
    {"name": "d-psgd", "topology": "torus"},
    "gossip-sgd",
    "gradient-tracking",
    "choco-sgd",
    "ad-psgd",
]


@pytest.mark.parametrize("strategy", [*NEIGHBOURS, "ring-all-reduce", "tree-all-reduce"], ids=str)
@pytest.mark.parametrize(
    "policy", ["respawn", *(pytest.param(policy, marks=pytest.mark.long) for policy in ("drop", "redistribute"))]
)
def test_training_continues_after_any_worker_loss(fit: Fit, strategy: Any, policy: str) -> None:
    faults = ["kill worker 1 at step 7", "kill worker 0 at step 20"]
    run = fit(strategy=strategy, workers=4, faults=faults, on_worker_loss=policy, epochs=4, rounds=None)
    lost = [event.actor for event in run.events if event.event == "worker lost"]
    assert lost == ["worker 1", "worker 0"]
    assert run.metrics["accuracy"] > 0.8
    assert run.metrics.get("consensus_distance", 0) < 2
    assert run.stopped_by == "epochs"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", ["ring-all-reduce", "tree-all-reduce"])
@pytest.mark.parametrize("workers", [2, 4, 7])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_death_at_any_moment_of_a_step_costs_no_bits(fit: Fit, strategy: str, workers: int, rank: int) -> None:
    options: dict[str, Any] = {"strategy": strategy, "workers": workers, "rounds": 6}
    whole = fit("whole", **options)
    rows = [json.loads(line) for line in (whole.run_dir / "trace.jsonl").read_text().splitlines()]
    ends_s = [row["end_s"] for row in rows if row["actor"] == "worker 0" and row["call"] == "step_reduced"]
    for part in range(8):
        moment_s = ends_s[2] + (ends_s[3] - ends_s[2]) * (part + 0.5) / 8
        run = fit(f"part {part}", faults=[f"kill worker {rank} at {moment_s} s"], **options)
        assert [event.actor for event in run.events if event.event == "worker lost"] == [f"worker {rank}"]
        assert np.array_equal(run.trained.parameters(), whole.trained.parameters()), (part, moment_s)


@pytest.mark.parametrize("strategy", ["d-psgd", pytest.param("ad-psgd", marks=pytest.mark.long)])
@pytest.mark.long
def test_a_killed_neighbour_is_replaced_by_a_copy(fit: Fit, strategy: str) -> None:
    run = fit(
        engine="local",
        strategy=strategy,
        workers=3,
        faults=["kill worker 1 at step 30"],
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
        epochs=4,
        rounds=None,
    )
    told = [(event.event, event.actor) for event in run.events]
    assert told[1:] == [("worker lost", "worker 1"), ("worker respawned", "worker 1")]
    assert run.metrics["accuracy"] > 0.85
    assert run.metrics["consensus_distance"] < 2


@pytest.mark.parametrize(
    ("strategy", "codec"),
    [
        ({"name": "d-psgd", "topology": {"name": "exponential", "one_peer": True}}, "identity"),
        pytest.param("d-psgd", "qsgd", marks=pytest.mark.long),
        pytest.param("gossip-sgd", "identity", marks=pytest.mark.long),
        ("gradient-tracking", "int8"),
        ("choco-sgd", TOP_K),
        pytest.param("choco-sgd", "terngrad", marks=pytest.mark.long),
        ("ad-psgd", "identity"),
        pytest.param("ring-all-reduce", "identity", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_resumed_run_leaves_the_same_bytes(fit: Fit, strategy: Any, codec: Any) -> None:
    settings: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [16], "dropout": 0.2, "batch_norm": True},
        "engine": {"name": "simulated", "compute": {"straggler_spread": 0.9}},
        "strategy": strategy,
        "codec": codec,
        "optimizer": {"name": "adam", "lr": 2e-3},
        "rounds": 22,
        "log_every": 1,
        "evaluate_every": 9,
        "checkpoint_every": 4,
        "resume": True,
    }
    whole = fit("whole", **settings)
    with pytest.raises(KilledError):
        fit("cut", callbacks=[Kill(13)], **settings)
    resumed = fit("cut", **settings)
    for file in ("metrics.jsonl", "trace.jsonl"):
        assert (resumed.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes(), file
    assert np.array_equal(resumed.trained.parameters(), whole.trained.parameters())
    if whole.metrics.get("consensus_distance"):
        assert np.array_equal(models(resumed), models(whole))
        assert np.abs(models(whole)[0] - models(whole)[1]).max() > 1e-6


@pytest.mark.parametrize("workers", [2, 5])
def test_the_cost_of_a_ring_matches_theory(fit: Fit, workers: int) -> None:
    bandwidth, latency, hidden = 1e4, 1e-3, 24
    engine = {
        "name": "simulated",
        "network": {
            "bandwidth_bytes_s": bandwidth,
            "latency_s": latency,
            "nodes": {"driver": {"bandwidth_bytes_s": 1e9}},  # so that only chunks take time
        },
        "compute": {"seconds_per_call": 0.0, "seconds_per_sample": 0.0, "seconds_per_element": 0.0},
    }
    taken = {}
    for strategy in ("ring-all-reduce", "tree-all-reduce"):
        run = fit(
            strategy,
            model={"name": "mlp", "hidden": [hidden]},
            engine=engine,
            strategy=strategy,
            workers=workers,
            rounds=10,
            evaluate_every=100,
            log_every=100,
        )
        rows = [json.loads(line) for line in (run.run_dir / "trace.jsonl").read_text().splitlines()]
        steps = [row for row in rows if row["call"] == "step_reduced" and row["actor"] == "worker 0"]
        taken[strategy] = (steps[-1]["end_s"] - steps[0]["end_s"]) / 9
        if strategy == "ring-all-reduce":
            sent = [
                sum(row["bytes_out"] for row in rows if row["actor"] == f"worker {rank}" and row["call"] in SENDING)
                for rank in range(workers)
            ]
            size = run.trained.parameters().nbytes
    messages = 2 * (workers - 1)
    # Each message has 8 bytes besides its chunk: how many gradients are in it. Chunks differ by one element.
    for each in sent:
        assert abs(each / 10 - messages * (size / workers + 8)) < 4 * messages
    theory = messages * (latency + (size / workers + 8) / bandwidth)
    assert taken["ring-all-reduce"] == pytest.approx(theory, rel=0.02)
    depth = (workers).bit_length() - 1
    assert taken["tree-all-reduce"] > 2 * depth * size / bandwidth * 0.99
    assert taken["ring-all-reduce"] < taken["tree-all-reduce"]


SENDING = {"contribute", "add", "take"}


def test_vectors_do_not_pass_through_the_driver(fit: Fit) -> None:
    """Its link is slow, and the rounds before the first look do not wait for it."""
    network = {"bandwidth_bytes_s": 1e9, "nodes": {"driver": {"bandwidth_bytes_s": 2e4}}}
    for strategy in NEIGHBOURS:
        name = strategy if isinstance(strategy, str) else strategy["name"]
        run = fit(
            name, strategy=strategy, engine={"name": "simulated", "network": network}, evaluate_every=100, log_every=100
        )
        rows = [json.loads(line) for line in (run.run_dir / "trace.jsonl").read_text().splitlines()]
        stepped = [row["end_s"] for row in rows if "_step" in row["call"] or "step_" in row["call"]]
        assert len(stepped) == 30 * (1 if strategy == "ad-psgd" else 3)
        assert max(stepped) < 0.5  # one model of each round would take 30 times 0.25 s


def test_traffic_equals_the_size_of_messages(fit: Fit) -> None:
    run = fit(strategy="choco-sgd", codec=TOP_K, workers=WORKERS, rounds=20, evaluate_every=100)
    # Every worker sends one message a round, and one more at a restart of the strategy; two neighbours receive it.
    assert run.cost.elements_up == WORKERS * 21 * run.trained.parameters().size
    assert run.cost.elements_down == 2 * WORKERS * 20 * run.trained.parameters().size
    assert run.cost.bits_per_element_up is not None
    assert run.cost.bits_per_element_up < 8
    assert run.cost.bits_per_element_down == pytest.approx(run.cost.bits_per_element_up, rel=0.01)


def test_consensus_distance_and_spectral_gap_are_in_the_report(fit: Fit) -> None:
    run = fit(strategy="d-psgd", workers=4, evaluate_every=10)
    assert [round(row["consensus_distance"], 6) > 0 for row in run.rows if "consensus_distance" in row] == [True] * 3
    report = (run.run_dir / "report.html").read_text()
    assert "Consensus distance" in report
    assert "Consensus distance, test set" not in report
    assert "spectral" in report.lower()


def test_a_networkx_graph_is_accepted(fit: Fit) -> None:
    import networkx

    run = fit(strategy=DPSGD(topology=networkx.path_graph(4)), workers=4)
    assert run.figures["spectral_gap"] == topology_of(networkx.path_graph(4)).spectral_gap(4)
    assert run.metrics["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"strategy": "choco-sgd", "codec": {"name": "top-k", "error_feedback": True}},
            "has its own error feedback for codec 'top-k'",
        ),
        ({"strategy": {"name": "choco-sgd", "gamma": 0}}, "gamma must be above 0 and at most 1, not 0"),
        ({"strategy": {"name": "choco-sgd", "topology": "random-pairs"}}, "cannot vary in time"),
        ({"strategy": {"name": "ad-psgd", "seed": -1}}, "seed must be at least 0"),
        (
            {"strategy": {"name": "d-psgd", "topology": {"name": "random-regular", "degree": 3}}},
            "no graph of 3 workers",
        ),
        ({"strategy": "d-psgd", "codec": {"name": "identity", "downlink": "int8"}}, "no messages .* on the downlink"),
        ({"strategy": "ring-all-reduce", "codec": "int8"}, "sends no messages that codec 'int8' could encode"),
    ],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as caught:
        fit(**options)
    assert "\n" not in str(caught.value)
