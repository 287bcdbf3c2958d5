"""A run stops without improvement or on request, keeps the best model, and remembers both over a kill."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.cli.outcome import outcome
from chimera.core.errors import ConfigurationError
from chimera.data.scikit_learn import digits
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.budget import smaller_is_better
from chimera.training.progress.metric_monitor import MetricMonitor, Stopping
from training.conftest import Fit

RESTLESS = {"name": "sgd", "lr": 3.0}  # its accuracy rises and falls
STILL = {"name": "sgd", "lr": 0.0}
FILES = "weights.safetensors", "metrics.jsonl", "trace.jsonl"
SCRIPT = Path(__file__).with_name("interrupted.py")


class Vector:
    """What the monitor needs of a model."""

    def __init__(self, value: float = 0.0) -> None:
        self.flat = np.array([value], np.float32)

    def parameters(self) -> Any:
        return self.flat

    def buffers(self) -> Any:
        return -self.flat

    def load(self, flat: Any) -> None:
        self.flat[:] = flat

    def load_buffers(self, flat: Any) -> None:
        self.buffer = flat


values = st.lists(st.integers(0, 4).map(float) | st.just(math.nan), min_size=1, max_size=12)


@given(values=values, patience=st.integers(1, 4), metric=st.sampled_from(["loss", "accuracy"]), cut=st.integers(0, 11))
def test_it_stops_after_the_first_window_without_a_better_value(
    values: list[float], patience: int, metric: str, cut: int
) -> None:
    stopping = Stopping(patience, metric, "best")
    monitor, model = MetricMonitor(stopping), Vector()
    better = min if metric == "loss" else max
    for i, value in enumerate(values):
        if i == cut:  # a resumed run has another monitor
            state, monitor = monitor.state(), MetricMonitor(stopping)
            monitor.restore(state)
        model.flat[:] = i
        monitor.evaluated({metric: value}, i, model)  # type: ignore[arg-type]
        monitor.evaluated({metric: better(-1.0, 9.0)}, i, model)  # type: ignore[arg-type] # repeated: no effect
        known = [each for each in values[: i + 1] if not math.isnan(each)]
        first = values.index(better(known)) if known else -1
        assert monitor.exhausted == (i - first >= patience)
        assert monitor.kept_round == (first if known else None)
    if known:
        kept = Vector()
        assert monitor.load_kept(kept) == {metric: better(known)}  # type: ignore[arg-type]
        assert (kept.flat, kept.buffer) == (first, -first)


def test_a_run_without_improvement_stops(fit: Fit) -> None:
    run = fit(optimizer=STILL, evaluate_every=2, patience=3)
    assert (run.stopped_by, run.cost.rounds) == ("patience", 8)
    assert json.loads((run.run_dir / "summary.json").read_text())["stopped_by"] == "patience"


def test_the_monitored_metric_decides(fit: Fit) -> None:
    options: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.05}, "evaluate_every": 1, "patience": 2}
    by_loss, by_accuracy = fit("loss", monitor="loss", **options), fit("accuracy", **options)
    assert by_loss.stopped_by == "rounds"  # the loss falls at each step
    assert by_accuracy.stopped_by == "patience"


@pytest.mark.parametrize("strategy", ["parameter-server", "all-reduce"])
def test_the_best_model_is_returned_written_and_reported(fit: Fit, strategy: str) -> None:
    run = fit(strategy=strategy, optimizer=RESTLESS, evaluate_every=3, keep="best")
    rows = {row["round"]: row["accuracy"] for row in run.rows if "accuracy" in row}
    best = max(rows.values())
    assert rows[30] < best
    assert run.metrics["accuracy"] == best
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary["metrics"]["accuracy"] == best == rows[summary["kept_round"]]
    assert ("model", f"the best one, of round {summary['kept_round']}") in outcome(summary)
    assert "model of round" in (run.run_dir / "report.html").read_text()
    test = chimera.Split.of(digits()).test
    assert run.trained.evaluate((test.inputs, test.targets))["accuracy"] == best
    tensors = safetensors.numpy.load_file(run.run_dir / "weights.safetensors")
    for name, tensor in run.model.state_dict().items():
        assert np.array_equal(tensors[name], tensor.numpy())


def test_the_last_callback_receives_the_model_that_is_kept(fit: Fit) -> None:
    class Last(chimera.Callback):
        def on_model(self, model: Any, last: bool) -> None:
            self.weights = model.parameters().copy() if last else None

    seen = Last()
    run = fit(optimizer=RESTLESS, evaluate_every=3, keep="best", callbacks=[seen])
    assert np.array_equal(seen.weights, run.trained.parameters())


class DieAt(chimera.Callback):
    def __init__(self, round_: int) -> None:
        self.round = round_

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round:
            raise ZeroDivisionError


@pytest.mark.parametrize("dies_at", range(3, 22, 3))
def test_an_interrupted_run_stops_and_keeps_like_one_that_never_stopped(fit: Fit, dies_at: int) -> None:
    options: dict[str, Any] = {
        "optimizer": RESTLESS, "evaluate_every": 3, "checkpoint_every": 4, "log_every": 1, "patience": 4, "keep": "best"
    }  # fmt: skip
    whole = fit("whole", **options)
    assert whole.stopped_by == "patience"
    with pytest.raises(ZeroDivisionError):
        fit(**options, callbacks=[DieAt(min(dies_at, whole.cost.rounds))])
    again = fit(**options, resume=True)
    assert (again.stopped_by, again.metrics, again.cost) == (whole.stopped_by, whole.metrics, whole.cost)
    for file in FILES:
        assert (again.run_dir / file).read_bytes() == (whole.run_dir / file).read_bytes(), file


@pytest.mark.long
def test_the_best_weights_survive_a_kill(tmp_path: Path) -> None:
    options = {"optimizer": RESTLESS, "evaluate_every": 2, "checkpoint_every": 4, "patience": 3, "keep": "best"}

    def train(out: str, dies_at: int) -> int:
        arguments = [tmp_path / out, '"simulated"', '"parameter-server"', "40", str(dies_at), "SIGKILL"]
        return subprocess.run([sys.executable, SCRIPT, *arguments, json.dumps(options)], check=False).returncode

    assert train("whole", 0) == 0
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["stopped_by"] == "patience"
    assert train("run", summary["kept_round"] + 3) == -signal.SIGKILL
    assert train("run", 0) == 0
    for file in FILES:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_resuming_a_run_that_stopped_changes_nothing(fit: Fit) -> None:
    first = fit(optimizer=RESTLESS, evaluate_every=2, patience=3, keep="best")
    again = fit(optimizer=RESTLESS, evaluate_every=2, patience=3, keep="best", resume=True)
    assert (again.stopped_by, again.metrics, again.cost) == (first.stopped_by, first.metrics, first.cost)


def test_a_finished_run_still_has_its_last_model(fit: Fit) -> None:
    options: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 30.0}, "evaluate_every": 3}
    options["model"] = {"name": "mlp", "hidden": [16], "batch_norm": True}
    found = [row["accuracy"] for row in fit("probe", **options).rows if "accuracy" in row]
    options["rounds"] = 3 * next(i for i in range(1, 10) if found[i] < max(found[:i])) + 3
    best, last = fit(**options, keep="best"), fit("last", **options)
    assert best.metrics["accuracy"] > last.metrics["accuracy"]
    again = fit(**options, keep="last", resume=True)
    assert again.metrics == last.metrics
    for name, tensor in last.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


def test_a_run_that_ends_between_evaluations_keeps_the_better_model(fit: Fit) -> None:
    options: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.05}, "evaluate_every": 4, "keep": "best"}
    options |= {"monitor": "loss", "patience": 3}
    fit(rounds=10, **options)
    ended = fit(rounds=10, **options, resume=True)
    assert ended.metrics["loss"] == min(row["loss"] for row in ended.rows if "loss" in row)
    assert ended.figures["kept_round"] == 10
    longer, whole = fit(rounds=20, **options, resume=True), fit("whole", rounds=20, **options)
    assert (longer.metrics, longer.figures) == (whole.metrics, whole.figures)
    assert (longer.run_dir / "weights.safetensors").read_bytes() == (whole.run_dir / "weights.safetensors").read_bytes()


def test_a_lost_server_undoes_what_the_monitor_saw_since_the_snapshot(fit: Fit) -> None:
    run = fit(
        optimizer=RESTLESS, evaluate_every=2, checkpoint_every=10, keep="best", faults=["kill server 0 at step 15"]
    )
    assert any(event.event == "server respawned" for event in run.events)
    assert run.metrics in [{k: row[k] for k in ("loss", "accuracy")} for row in run.rows if "accuracy" in row]


def test_an_unknown_monitor_is_one_line_with_the_measured_metrics(fit: Fit) -> None:
    with pytest.raises(ConfigurationError) as error:
        fit(monitor="acuracy", rounds=2)
    assert str(error.value) == "monitor: 'acuracy' is not measured; did you mean 'accuracy'? measured: loss, accuracy"


@pytest.mark.parametrize("option", [{"patience": 0}, {"keep": "worst"}])
def test_wrong_options_are_refused_before_the_run(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        chimera.Trainer("mlp", "digits", **option)


def test_an_experiment_file_sets_them(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('data = "digits"\nmodel = "mlp"\n[train]\npatience = 5\nmonitor = "loss"\nkeep = "best"\n')
    text = Experiment.load(file).to_toml()
    assert all(line in text for line in ("patience = 5", 'monitor = "loss"', 'keep = "best"'))
    file.write_text('data = "digits"\nmodel = "mlp"\n[train]\nkeep = "worst"\n')
    with pytest.raises(ConfigurationError, match=r"\[train\] keep = 'worst' cannot be used"):
        Experiment.load(file)


class StopAt(chimera.Callback):
    """Stops the run at a round, from the driver's thread or another one."""

    def __init__(self, round_: int, *, in_thread: bool = False) -> None:
        self.round, self.in_thread, self.lasts = round_, in_thread, list[bool]()
        self.trainer: chimera.Trainer

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round:
            thread = threading.Thread(target=self.trainer.stop)
            (thread.start if self.in_thread else self.trainer.stop)()
            if self.in_thread:
                thread.join()

    def on_model(self, model: Any, last: bool) -> None:
        self.lasts.append(last)


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("at", [5, 10], ids=["between evaluations", "at an evaluation"])
def test_a_callback_stops_the_run(tmp_path: Path, at: int, in_thread: bool) -> None:
    stop = StopAt(at, in_thread=in_thread)
    options: dict[str, Any] = {"engine": "simulated", "evaluate_every": 10, "checkpoint_every": 5, "log_every": 1}
    stop.trainer = chimera.Trainer(
        {"name": "mlp", "hidden": [8]}, "digits", rounds=30, out=tmp_path / "run", callbacks=[stop], **options
    )
    run = stop.trainer.fit()
    assert (run.stopped_by, run.cost.rounds) == ("stop", at)
    assert run.metrics == {k: run.rows[-1][k] for k in ("loss", "accuracy")}
    assert [row["round"] for row in run.rows] == list(range(1, at + 1)) + ([5] if at == 5 else [])
    assert stop.lasts[-1]
    assert not any(stop.lasts[:-1])
    for name in ("weights.safetensors", "summary.json", "report.html"):
        assert (run.run_dir / name).exists()


def test_a_stopped_run_resumes_to_the_bits_of_a_whole_one(tmp_path: Path, fit: Fit) -> None:
    whole = fit("whole", rounds=20, evaluate_every=10)
    stop = StopAt(10)
    options: dict[str, Any] = {
        "engine": "simulated",
        "evaluate_every": 10,
        "workers": 3,
        "batch_size": 16,
        "rounds": 20,
    }
    options |= {"optimizer": {"name": "adam", "lr": 5e-3}, "out": tmp_path / "run"}
    stop.trainer = chimera.Trainer({"name": "mlp", "hidden": [16]}, "digits", callbacks=[stop], **options)
    assert stop.trainer.fit().cost.rounds == 10
    again = chimera.train({"name": "mlp", "hidden": [16]}, "digits", **options, resume=True)
    assert (again.run_dir / "weights.safetensors").read_bytes() == (whole.run_dir / "weights.safetensors").read_bytes()


def test_names_of_losses_say_that_they_fall() -> None:
    assert all(map(smaller_is_better, ["loss", "val_loss", "val/loss", "test-mse", "Val_Loss"]))
    assert not any(map(smaller_is_better, ["val_acc", "lossless_share", "f1"]))


def test_evaluations_without_the_metric_do_not_count() -> None:
    """The nodes that measure it are away."""
    monitor = MetricMonitor(Stopping(patience=2))
    for round_, metrics in enumerate([{"loss": 1.0}, {}, {"accuracy": 0.9}, {"loss": 2.0}], 1):
        monitor.evaluated(metrics, round_, Vector())  # type: ignore[arg-type]
    assert not monitor.exhausted
    monitor.evaluated({"loss": 2.0}, 5, Vector())  # type: ignore[arg-type]
    assert monitor.exhausted
