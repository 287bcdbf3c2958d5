"""Trackers: what each library's own reader finds, resumption, failures, and what is not sent."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import chimera
from chimera.core.errors import ConfigurationError
from chimera.training.tracking.tracker import TRACKERS, Tracked, Tracker
from chimera.training.tracking.tracking import FILE

ROUNDS = 12
Fit = Callable[..., chimera.Run]


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fit:
    """Train a linear model with trackers; all of them keep their files in the test's folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))

    def fit(*track: Any, **options: Any) -> chimera.Run:
        given = {
            "engine": "simulated", "workers": 2, "batch_size": 16, "rounds": ROUNDS, "evaluate_every": 4, "log_every": 2,
            "optimizer": {"name": "sgd", "lr": 0.1}, "out": tmp_path / "run", "track": list(track),
        }  # fmt: skip
        model = {"name": "sklearn-sgd-classifier", "loss": "log_loss"}
        return chimera.Trainer(model, "digits", **{**given, **options}).fit()

    return fit


class Memory(Tracker):
    """A tracker that keeps what it receives."""

    records: list[Memory]

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.events: list[str] = []
        self.ended: tuple[dict[str, float], list[str], bool] | None = None
        Memory.records.append(self)

    def begin(self, run: Tracked) -> str:
        self.run = run
        return run.known or "first"

    def log(self, values: Mapping[str, float], round_: int, seconds: float) -> None:
        if self.fails_at is not None and round_ >= self.fails_at:
            raise ConnectionError("the tracker is away\nand more")
        self.rows.append((round_, dict(values)))

    def event(self, text: str, round_: int) -> None:
        self.events.append(text)

    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:
        self.ended = dict(summary), sorted(files), finished


@pytest.fixture
def memory() -> Iterator[list[Memory]]:
    """Register the tracker ``memory``; yield those that runs have made."""
    Memory.records = []
    TRACKERS.register("memory")(Memory)
    yield Memory.records
    TRACKERS._entries.pop("memory")


def test_a_tracker_gets_settings_rows_events_and_the_end(fit, memory):
    run = fit("memory", faults=["kill worker 1 at step 6"])
    (tracker,) = memory
    assert tracker.run.settings["train.batch_size"] == 16
    assert tracker.run.settings["strategy.name"] == "parameter-server"
    rounds = [round_ for round_, _ in tracker.rows]
    assert rounds == sorted(rounds)
    assert rounds[-1] == ROUNDS
    last = tracker.rows[-1][1]
    assert last["test/accuracy"] == run.metrics["accuracy"]
    assert last["system/bytes_up"] == run.cost.bytes_up
    assert any(text.startswith("worker lost worker 1") for text in tracker.events)
    assert tracker.ended is not None
    summary, files, finished = tracker.ended
    assert (finished, files) == (True, ["experiment.toml", "report.html", "summary.json"])
    assert summary["metrics.accuracy"] == run.metrics["accuracy"]


def test_a_resumed_run_continues_its_record(fit, memory):
    fit("memory", rounds=4)
    fit("memory", resume=True)
    assert [tracker.run.known for tracker in memory] == [None, "first"]


def test_a_tracker_that_fails_is_reported_once_and_does_not_end_the_run(fit, memory):
    said = "^memory failed, and records no more of this run: ConnectionError: the tracker is away$"
    with pytest.warns(UserWarning, match=said):
        run = fit({"name": "memory", "fails_at": 6})
    assert run.cost.rounds == ROUNDS
    assert [round_ for round_, _ in memory[0].rows if round_ >= 6] == []


def test_a_run_that_fails_ends_its_record(fit, memory):
    with pytest.raises(chimera.core.errors.ChimeraError):
        fit("memory", faults=["kill worker 0 at step 4"], on_worker_loss="stop")
    assert memory[0].ended == ({}, [], False)


def test_secrets_are_not_sent(fit, memory, monkeypatch):
    from chimera.training.tracking.tracking import Tracking

    tables = {"engine": {"name": "http", "token": "sesame", "tls_key": "x.key"}, "train": {"workers": 2}}
    tracking = Tracking({}, settings=tables, folder=Path)
    assert tracking._settings == {"engine.name": "http", "train.workers": 2}


@pytest.mark.parametrize(
    ("track", "message"),
    [
        (["tensorbord"], "did you mean 'tensorboard'"),
        (["memory", "memory"], "track names 'memory' twice"),
        ([{"name": "memory", "project": "x"}], "has no option 'project'"),
    ],
)
def test_mistakes_are_named_before_the_run_starts(fit, memory, track, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        fit(*track)
    assert not (tmp_path / "run").exists()


# --- each library's own reader


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written(fit, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'chimera-dml[track]'")
    run = fit("tensorboard")
    found = scalars(run.run_dir)
    assert found["test/accuracy"][-1] == (ROUNDS, pytest.approx(run.metrics["accuracy"]))
    assert len(found["train/loss"]) >= ROUNDS // 2


@pytest.mark.long
def test_mlflow_reads_what_was_written(fit, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'chimera-dml[track]'")
    run = fit({"name": "mlflow", "experiment": "digits"})
    client = mlflow.tracking.MlflowClient()
    number = json.loads((run.run_dir / FILE).read_text())["mlflow"]
    record = client.get_run(number)
    assert record.info.status == "FINISHED"
    assert record.data.params["train.batch_size"] == "16"
    assert record.data.metrics["test/accuracy"] == pytest.approx(run.metrics["accuracy"])
    steps = [each.step for each in client.get_metric_history(number, "train/loss")]
    assert steps == list(range(2, ROUNDS + 1, 2))  # also rows that are sent together
    assert "report.html" in [each.path for each in client.list_artifacts(number)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_all_events_of_a_round_are_kept(name, tmp_path, monkeypatch):
    pytest.importorskip(name, reason="MLflow or W&B is not installed: pip install 'chimera-dml[track]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = TRACKERS.create(name, {})
    number = tracker.begin(Tracked("run", tmp_path, {}, None))
    for text, round_ in [("worker lost worker 1", 3), ("worker lost worker 2", 3), ("worker lost worker 3", 4)]:
        tracker.event(text, round_)
    tracker.end({}, {}, finished=True)
    if name == "mlflow":
        tags = tracker._client.get_run(number).data.tags
        found = [tags[f"event.round_{round_}"] for round_ in (3, 4)]
    else:
        found = [json.loads(row["event"]) for row in wandb_history(tmp_path) if "event" in row]
    assert found == ["worker lost worker 1\nworker lost worker 2", "worker lost worker 3"]


def log_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, after the head of 7 bytes that wandb writes."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the only part of a record, or the last one
            yield parts
            parts = b""


def wandb_history(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the only record in a folder, with values as JSON texts."""
    from wandb.proto import wandb_internal_pb2

    (file,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    history = []
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            history.append({item.key or ".".join(item.nested_key): item.value_json for item in record.history.item})
    return history


@pytest.mark.long
def test_wandb_reads_what_was_written_offline(fit, tmp_path):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'chimera-dml[track]'")
    run = fit("wandb")
    history = wandb_history(run.run_dir)
    assert any(
        float(row["test/accuracy"]) == pytest.approx(run.metrics["accuracy"])
        for row in history
        if "test/accuracy" in row
    )


@pytest.mark.long
def test_trackio_reads_what_was_written(fit, tmp_path):
    pytest.importorskip("trackio", reason="Trackio is not installed: pip install 'chimera-dml[track]'")
    import trackio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fit({"name": "trackio", "project": "digits"})
    (record,) = trackio.Api().runs("digits")
    rows = trackio.SQLiteStorage.get_logs("digits", record.name)
    measured = [row for row in rows if "test/accuracy" in row]
    assert measured[-1]["test/accuracy"] == pytest.approx(run.metrics["accuracy"])
    assert measured[-1]["step"] == ROUNDS
