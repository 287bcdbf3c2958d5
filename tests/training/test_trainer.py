from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import chimera
from chimera.codecs.identity import Identity
from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError, NonFiniteError, RunError, TooFewWorkersError
from chimera.data.partition import Iid
from chimera.models.model import Batch
from chimera.models.torch_model import TorchModel
from chimera.strategies.parameter_server import ParameterServer
from training.conftest import Fit

STRATEGIES = ["parameter-server", "all-reduce", "single-worker"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_learns_digits(fit: Fit, strategy: str) -> None:
    run = fit(strategy=strategy, epochs=6, rounds=None)
    assert run.metrics["accuracy"] > 0.9
    assert run.stopped_by == "epochs"
    assert run.cost.samples >= 6 * 1437


def test_the_returned_module_has_the_evaluated_weights(fit: Fit) -> None:
    run = fit()
    tensors = safetensors.numpy.load_file(run.run_dir / "weights.safetensors")
    for name, tensor in run.model.state_dict().items():
        assert np.array_equal(tensors[name], tensor.numpy())


@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize("strategy", ["parameter-server", "fed-avg"])
def test_a_given_module_is_trained_in_place(fit: Fit, engine: str, strategy: str) -> None:
    """As in PyTorch, a second run continues from its weights; the files of the first run keep those of that run."""
    module = nn.Linear(64, 10)
    options: dict[str, Any] = {"model": module, "engine": engine, "strategy": strategy, "rounds": 3, "workers": 2}
    first = fit(**options)
    after = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert first.model is module
    second = fit("second", **options, evaluate_every=1)
    assert second.model is module
    assert second.metrics["loss"] < first.metrics["loss"]
    assert second.history["loss"].iloc[0] < first.metrics["loss"]
    for run, tensors in ((first, after), (second, module.state_dict())):
        written = safetensors.numpy.load_file(run.run_dir / "weights.safetensors")
        assert all(np.array_equal(written[name], tensor.numpy()) for name, tensor in tensors.items())


def test_a_given_model_is_trained_in_place(fit: Fit) -> None:
    model = TorchModel(nn.Linear(64, 10))
    run = fit(model=model, rounds=3)
    assert run.trained is model
    assert run.model is model.module


def test_a_factory_makes_a_new_module_for_each_run(fit: Fit) -> None:
    first, second = (fit(name, model=lambda: nn.Linear(64, 10), rounds=3) for name in "ab")
    assert first.model is not second.model
    assert torch.equal(first.model.weight, second.model.weight)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "engine",
    [
        {"name": "simulated"},
        {"name": "simulated", "compute": {"straggler_spread": 0.8, "spread": 0.3}, "seed": 5},
    ],
    ids=["plain", "stragglers"],
)
def test_two_runs_with_one_seed_leave_the_same_bytes(fit: Fit, strategy: str, engine: dict[str, Any]) -> None:
    first, second = (fit(name, strategy=strategy, engine=engine, evaluate_every=8) for name in "ab")
    for file in ("trace.jsonl", "metrics.jsonl", "weights.safetensors"):
        assert (first.run_dir / file).read_bytes() == (second.run_dir / file).read_bytes()
    assert (first.run_dir / "trace.jsonl").stat().st_size > 1000
    other = fit("c", strategy=strategy, engine=engine, evaluate_every=8, seed=1)
    assert (other.run_dir / "weights.safetensors").read_bytes() != (first.run_dir / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"rounds": 7}, "rounds"),
        ({"epochs": 0.5}, "epochs"),
        ({"max_seconds": 0.02}, "max_seconds"),
        ({"max_bytes": 400_000}, "max_bytes"),
        ({"rounds": 10_000, "target": {"accuracy": 0.8}, "evaluate_every": 5}, "target"),
        ({"rounds": 10_000, "target": {"loss": 1.0, "accuracy": 0.5}, "evaluate_every": 5}, "target"),
        ({"rounds": 10_000, "target": {"accuracy": 0.8}, "evaluate_every": 5, "checkpoint_every": 1000}, "target"),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_each_budget_stops_the_run(fit: Fit, strategy: str, budget: dict[str, Any], reason: str) -> None:
    run = fit(strategy=strategy, rounds=None, **budget) if "rounds" not in budget else fit(strategy=strategy, **budget)
    assert run.stopped_by == reason
    cost = run.cost
    if reason == "rounds":
        assert (cost.rounds, cost.samples) == (7, 7 * 48)
    if reason == "epochs":
        assert 0.5 <= cost.epochs < 0.5 + 48 / 1437
    if reason == "max_seconds":
        assert 0.02 <= cost.seconds < 0.06
    if reason == "max_bytes":
        per_round = (cost.bytes_up + cost.bytes_down) / cost.rounds
        assert 400_000 <= cost.bytes_up + cost.bytes_down < 400_000 + 2 * per_round
    if reason == "target":
        assert all(
            run.metrics[name] >= value if name == "accuracy" else run.metrics[name] <= value
            for name, value in budget["target"].items()
        )


def test_a_parameter_server_costs_a_gradient_up_and_the_weights_down_per_worker_and_round(fit: Fit) -> None:
    run = fit(rounds=10, evaluate_every=3)
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    assert run.cost.bytes_up == run.cost.bytes_down == 10 * 3 * 4 * parameters


def test_the_files_of_a_run_agree_with_what_it_returns(fit: Fit) -> None:
    run = fit(evaluate_every=10)
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary == json.loads(json.dumps(run.summary()))
    rows = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows == run.rows
    assert [row["round"] for row in rows if "accuracy" in row] == [10, 20, 30]
    assert rows[-1]["samples"] == run.cost.samples
    assert list(run.history["round"]) == [row["round"] for row in rows]
    assert (run.run_dir / "report.html").stat().st_size > 5000
    assert run.plot().read_bytes().startswith(b"\x89PNG")


def test_the_experiment_file_of_a_run_repeats_it(fit: Fit, tmp_path: Path) -> None:
    run = fit(strategy={"name": "parameter-server", "shards": 2}, partition={"name": "dirichlet", "alpha": 0.3})
    again = chimera.Experiment.load(run.run_dir / "experiment.toml").trainer(out=tmp_path / "again").fit()
    assert np.array_equal(again.trained.parameters(), run.trained.parameters())


def test_a_quorum_does_not_wait_for_stragglers(fit: Fit) -> None:
    engine = {"name": "simulated", "compute": {"slow": {"worker 2": 50.0}}}
    waiting = fit("all", engine=engine)
    quorum = fit("two", engine=engine, strategy={"name": "parameter-server", "quorum": 0.6})
    limit = fit("late", engine=engine, strategy={"name": "parameter-server", "timeout_s": 0.005})
    assert quorum.cost.seconds < waiting.cost.seconds / 5
    assert limit.cost.seconds < waiting.cost.seconds / 2
    assert waiting.cost.rounds == quorum.cost.rounds == limit.cost.rounds == 30


def test_callbacks_get_the_model_at_each_evaluation_and_at_the_end(fit: Fit) -> None:
    class ModelRecorder(chimera.Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[bytes, bool]] = []

        def on_model(self, model: Any, last: bool) -> None:
            self.seen.append((model.parameters().tobytes(), last))

    recorder = ModelRecorder()
    run = fit(rounds=7, evaluate_every=3, callbacks=[recorder])
    assert [last for _, last in recorder.seen] == [False, False, True]
    assert len({weights for weights, _ in recorder.seen}) == 3
    assert recorder.seen[-1][0] == run.trained.parameters().tobytes()


def test_callbacks_are_called_in_order(fit: Fit) -> None:
    called: list[tuple[str, Any]] = []

    class Recorder(chimera.Callback):
        def on_start(self, progress: chimera.Progress) -> None:
            called.append(("start", progress.rounds))

        def on_progress(self, progress: chimera.Progress) -> None:
            assert 0 < progress.fraction <= 1
            called.append(("progress", progress.rounds))

        def on_event(self, event: chimera.Event) -> None:
            called.append((event.event, event.actor))

        def on_end(self, run: chimera.Run) -> None:
            called.append(("end", run.cost.rounds))

    engine = {"name": "simulated", "availability": {"crash": {"worker 1": 0.01}}}
    fit(engine=engine, callbacks=[Recorder()], log_every=10, evaluate_every=100)
    assert called[0] == ("start", 0)
    assert called[-1] == ("end", 30)
    assert ("worker lost", "worker 1") in called
    assert [round_ for what, round_ in called if what == "progress"] == [10, 20, 30]


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
@pytest.mark.parametrize("when", [0.003, 0.0101, 0.02])
def test_a_lost_worker_is_an_event_and_the_others_finish(fit: Fit, strategy: str, when: float) -> None:
    engine = {"name": "simulated", "availability": {"crash": {"worker 1": when}}}
    run = fit(strategy=strategy, engine=engine, on_worker_loss="drop")
    assert run.cost.rounds == 30
    assert run.lost_workers == run.summary()["lost_workers"] == 1
    (event,) = run.events
    assert (event.event, event.actor) == ("worker lost", "worker 1")
    assert (run.run_dir / "events.jsonl").read_text().count("\n") == 1
    assert run.cost.samples < 30 * 48


@pytest.mark.parametrize("strategy", [*STRATEGIES[:2], "async-parameter-server"])
def test_a_replaced_worker_does_its_share(fit: Fit, strategy: str) -> None:
    engine = {"name": "simulated", "availability": {"crash": {"worker 1": 0.01}}}
    run = fit(strategy=strategy, engine=engine, rounds=90)
    assert [(event.event, event.actor) for event in run.events] == [
        ("worker lost", "worker 1"),
        ("worker respawned", "worker 1"),
    ]
    assert run.lost_workers == 1
    after = run.events[1].seconds
    rows = map(json.loads, (run.run_dir / "trace.jsonl").read_text().splitlines())
    ends = [row["end_s"] for row in rows if row["actor"] == "worker 1"]
    assert sum(end > after for end in ends) > 3
    assert max(ends) > 0.8 * run.cost.seconds
    assert run.metrics["accuracy"] > 0.5


def test_a_replaced_all_reduce_worker_copies_the_others(fit: Fit) -> None:
    weights: list[Any] = []
    with ENGINES.create("simulated", {"availability": {"crash": {"worker 2": 0.01}}}) as engine:
        kill = engine.kill
        engine.kill = lambda actor: (weights.append(engine.get(actor.weights()).arrays[0].copy()), kill(actor))  # type: ignore[method-assign]
        fit(engine=engine, strategy="all-reduce")
    assert len(weights) == 3
    assert np.array_equal(weights[0], weights[1])
    assert np.array_equal(weights[0], weights[2])


def test_lost_workers_are_dropped_after_max_restarts(fit: Fit) -> None:
    crashes = {"worker 0": 0.005, "worker 1": 0.01, "worker 2": 0.015}
    run = fit(engine={"name": "simulated", "availability": {"crash": crashes}}, max_restarts=2)
    assert [event.event for event in run.events] == ["worker lost", "worker respawned"] * 2 + [
        "worker lost",
        "worker dropped",
    ]
    assert run.lost_workers == 3
    assert run.cost.rounds == 30


def test_a_run_set_to_stop_at_a_loss_stops(fit: Fit) -> None:
    engine = {"name": "simulated", "availability": {"crash": {"worker 1": 0.01}}}
    with pytest.raises(RunError, match="worker 1 died, and on_worker_loss is 'stop'"):
        fit(engine=engine, on_worker_loss="stop")


def test_the_loss_of_all_replicas_is_reported(fit: Fit) -> None:
    engine = {"name": "simulated", "availability": {"crash": {"worker 0": 0.01}}}
    whole = fit("whole", strategy="single-worker")
    run = fit(engine=engine, strategy="single-worker", snapshot_every=5)
    told = ["worker lost", "worker respawned", "went back"]
    assert [event.event for event in run.events] == told
    assert "the snapshot of round " in run.events[-1].detail
    assert run.cost.lost_rounds > 0
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())
    with pytest.raises(TooFewWorkersError, match="worker 0 died; 0 workers left"):
        fit("dropped", engine=engine, strategy="single-worker", on_worker_loss="drop")


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_a_loss_at_the_end_does_not_fail_the_run(fit: Fit, strategy: str) -> None:
    whole = fit("whole", strategy=strategy, evaluate_every=100, checkpoint_every=100)
    end = whole.cost.seconds
    for i, when in enumerate((end - 1e-3, end - 5e-4, end - 2e-4, end - 1e-4, end)):
        engine = {"name": "simulated", "availability": {"crash": {"worker 0": when}}}
        run = fit(f"run {i}", strategy=strategy, engine=engine, evaluate_every=100, checkpoint_every=100)
        assert run.cost.rounds == 30
        assert run.metrics["accuracy"] > 0.3


def test_after_a_loss_all_copies_of_an_all_reduce_are_identical(fit: Fit) -> None:
    with ENGINES.create("simulated", {"availability": {"crash": {"worker 2": 0.01}}}) as engine:
        kill = engine.kill
        weights: list[Any] = []
        engine.kill = lambda actor: (weights.append(engine.get(actor.weights()).arrays[0].copy()), kill(actor))  # type: ignore[method-assign]
        run = fit(engine=engine, strategy="all-reduce", on_worker_loss="drop")
    assert run.lost_workers == 1
    assert len(weights) == 2
    assert np.array_equal(*weights)


def test_too_few_workers_left_is_an_error_that_counts_them(fit: Fit) -> None:
    engine = {"name": "simulated", "availability": {"crash": {"worker 0": 0.01, "worker 1": 0.011}}}
    with pytest.raises(TooFewWorkersError, match="1 worker left, fewer than min_workers = 2"):
        fit(engine=engine, min_workers=2, on_worker_loss="drop")


class Exploding(TorchModel):
    """A network whose loss becomes NaN on one rank, once enough steps were taken."""

    def gradient(self, batch: Batch) -> tuple[Any, float]:
        gradient, loss = super().gradient(batch)
        self.calls = getattr(self, "calls", 0) + 1
        return gradient, float("nan") if self.calls > 12 else loss


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nan_losses_stop_the_run_and_name_rank_and_step(fit: Fit, tmp_path: Path, strategy: str) -> None:
    model = Exploding(lambda: torch.nn.Linear(64, 10), seed=0)
    with pytest.raises(NonFiniteError, match=r"rank 0, step 12: the loss is nan") as caught:
        fit("nan", model=model, strategy=strategy, checkpoint_every=5)
    assert "\n" not in str(caught.value)
    kept = sorted(path.name for path in (tmp_path / "nan" / "checkpoints").iterdir())
    assert kept[-1] == "round-000000010.safetensors"


def test_non_finite_parameters_are_never_checkpointed(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"NaN or infinite|the loss is"):
        fit("inf", optimizer={"name": "sgd", "lr": 3e38}, checkpoint_every=1)
    for path in (tmp_path / "inf" / "checkpoints").glob("*.safetensors"):
        assert all(np.isfinite(tensor).all() for tensor in safetensors.numpy.load_file(path).values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": 2**63}, "it must be 0 or more, and below 2"),
        ({"workers": 2000}, "2,000 workers cannot share 1,438 training samples"),
        ({"on_worker_loss": "ignore"}, "on_worker_loss must be one of respawn, redistribute, drop, stop, not 'ignore'"),
        ({"max_restarts": -1}, "max_restarts must be at least 0"),
        ({"min_workers": 9}, "min_workers is 9, but the run has 3 workers"),
        (
            {"strategy": "parameter-sever"},
            r"unknown strategy 'parameter-sever'; did you mean 'parameter-server'\? known: ad-psgd, all-reduce",
        ),
        ({"strategy": {"name": "parameter-server", "shard": 2}}, "no option 'shard'"),
        ({"strategy": {"name": "parameter-server", "shards": 100_000}}, "cannot be spread over 100,000 shards"),
        ({"strategy": {"name": "parameter-server", "quorum": 1.5}}, "quorum is a share"),
        ({"optimizer": "adamm"}, r"unknown optimizer 'adamm'; did you mean 'adam'\? known: .*adam"),
        ({"optimizer": {"name": "adam", "learning_rate": 1}}, "no option 'learning_rate'.*lr"),
        ({"optimizer": "lbfgs"}, "cannot update a flat dense vector"),
        ({"codec": "zip"}, "unknown codec 'zip'; known: adaptive, binary, cast"),
        ({"codec": "int8", "strategy": "all-reduce"}, "codec 'int8', as it is set, has no form for all-reduce: use"),
        ({"codec": {"name": "identity", "downlink": "cast"}, "strategy": "single-worker"}, "codec 'cast'"),
        ({"strategy": ParameterServer}, r"ParameterServer is not a strategy: give an object of it, ParameterServer\("),
        ({"strategy": 3}, "int is not a strategy: give a name, a table or an object"),
        ({"codec": Identity()}, "codec Identity is neither a name nor a table"),
        ({"partition": Iid}, "Iid is not a partition: give an object of it"),
        ({"engine": 3}, "int is not an engine"),
        ({"partition": "fair"}, "unknown partition 'fair'"),
        ({"engine": "cloud"}, "unknown engine 'cloud'; known: .*local"),
        ({"model": "mpl"}, "unknown model 'mpl'"),
        ({"data": "digit"}, "unknown data set 'digit'"),
        ({"rounds": 0}, "rounds must be above 0"),
        ({"log_every": 0}, "log_every must be at least 1"),
        ({"target": {"accuracy": float("nan")}}, "the target 'accuracy' is nan"),
        ({"target": 0.9}, r"target is a table of metrics and values, such as \{accuracy = 0.95\}, not 0.9"),
        ({"target": {"accuracy": "high"}}, "the target 'accuracy' is 'high': it must be a number"),
        ({"epochs": "3"}, "epochs = '3' cannot be used: Expected float, got str"),
        ({"rounds": True}, "rounds = True cannot be used: Expected int, got bool"),
        ({"rounds": 2.5}, "rounds = 2.5 cannot be used: Expected int, got float"),
        ({"max_seconds": "10"}, "max_seconds = '10' cannot be used: Expected float, got str"),
        ({"batch_size": "32"}, "batch_size = '32' cannot be used: Expected int, got str"),
        ({"workers": None}, "workers = None cannot be used: Expected int, got null"),
        ({"seed": None}, "seed = None cannot be used: Expected int, got null"),
        ({"max_gradient_norm": [1]}, r"max_gradient_norm = \[1\] cannot be used: Expected float, got array"),
        ({"evaluate_clients": "no"}, "evaluate_clients = 'no' cannot be used: Expected bool, got str"),
        ({"progress": 2}, "progress = 2 cannot be used: Expected bool, got int"),
        ({"progress": "no"}, "progress = 'no' cannot be used: Expected bool, got str"),
        ({"monitor": 3}, "monitor = 3 cannot be used: Expected str, got int"),
        ({"out": 3}, "out must be the path of a folder or a URL, not 3"),
        ({"loader": 4}, r"loader is a table such as \{workers = 2, ahead = 4\}, not 4"),
        ({"faults": 1}, "faults is a list of sentences, not 1"),
        ({"track": "tensorboard"}, r"track is a list: write track = \[.tensorboard.\]"),
        ({"track": 1}, "track is a list of names and tables, not 1"),
        ({"track": [1]}, "1 is neither a name nor a table"),
        ({"callbacks": chimera.Callback()}, r"callbacks is a list: write callbacks=\[...\]"),
        (
            {"callbacks": [chimera.Callback]},
            "is not a callback: give an object of a class derived from chimera.Callback",
        ),
        ({"target": {"acuracy": 0.9}}, r"'acuracy' is not measured; did you mean 'accuracy'\? known: loss, accuracy"),
    ],
)
def test_invalid_arguments_raise_a_one_line_error(fit: Fit, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [0, False, np.int64(0)])
def test_a_switch_may_be_0_or_1(given: Any) -> None:
    trainer = chimera.Trainer("mlp", "digits", progress=given, evaluate_clients=given)
    assert not trainer.progress


@pytest.mark.parametrize("given", [np.int64(3), 3.0])
def test_whole_numbers_of_any_type_are_accepted_as_counts(fit: Fit, given: Any) -> None:
    run = fit(rounds=given, batch_size=np.int32(8), workers=2, max_bytes=1e9, epochs=np.float32(9))
    assert run.cost.rounds == 3
    written = chimera.Experiment.load(run.run_dir / "experiment.toml").tables["train"]
    assert (written["rounds"], written["max_bytes"], written["batch_size"]) == (3, 1_000_000_000, 8)


@pytest.mark.parametrize("strategy", ["parameter-server", "gradient-coding", "pipeline-parallel"])
@pytest.mark.parametrize("seed", [20261231, 2**63 - 1])
def test_large_seeds_are_accepted(fit: Fit, seed: int, strategy: str) -> None:
    given = {"strategy": strategy, "seed": seed, "engine": "simulated", "rounds": 3, "workers": 2}
    first, second = (fit(folder, **given) for folder in ("a", "b"))
    assert np.array_equal(first.trained.parameters(), second.trained.parameters())


def test_a_given_engine_stays_open_without_the_actors_of_the_run(fit: Fit) -> None:
    with ENGINES.create("simulated") as engine:
        first = fit("a", engine=engine)
        second = fit("b", engine=engine)
        assert np.array_equal(first.trained.parameters(), second.trained.parameters())
        assert len(engine.lost()) == 2 * (3 + 1)
        assert second.lost_workers == 0


def test_batch_norm_statistics_are_merged_by_their_policy(fit: Fit) -> None:
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 10)
        )

    runs = {
        policy: fit(policy, model=TorchModel(network, seed=0, buffers=policy), epochs=3, rounds=None)
        for policy in ("average", "first", "none")
    }
    assert all(run.metrics["accuracy"] > 0.8 for policy, run in runs.items() if policy != "none")
    average, first, none = (runs[policy].trained.buffers() for policy in ("average", "first", "none"))
    assert not np.array_equal(average, first)
    assert np.array_equal(none[:16], np.zeros(16))  # the running means that the network began with
