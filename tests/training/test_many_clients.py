"""Tests of many clients in one process: they share one model in turn, and idle ones cost nothing, with unchanged results."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.core.engine import ENGINES
from chimera.core.errors import DataError
from chimera.data.dataset import Dataset
from training.conftest import Fit

SAMPLED = {"name": "fed-avg", "local_steps": 2, "fraction": 0.1}


def files_of(run: chimera.Run) -> dict[str, bytes]:
    names = "weights.safetensors", "metrics.jsonl", "trace.jsonl"
    return {name: (run.run_dir / name).read_bytes() for name in names}


@pytest.mark.long
def test_a_run_of_a_thousand_clients_resumes_to_the_same_bits(fit: Fit, tmp_path: Path) -> None:
    options = {"workers": 1000, "batch_size": 1, "strategy": SAMPLED, "rounds": 8, "evaluate_every": 4}
    whole = fit("whole", **options)
    shutil.copytree(whole.run_dir, tmp_path / "cut off")
    (tmp_path / "cut off" / "checkpoints" / "round-000000008.safetensors").unlink()
    assert files_of(fit("cut off", resume=True, **options)) == files_of(whole)


@pytest.mark.long
def test_clients_sharing_a_model_learn_the_same_as_with_their_own(fit: Fit) -> None:
    # batch normalisation and dropout: what a batch leaves in a model, and what it draws
    model = {"name": "mlp", "hidden": [8], "batch_norm": True, "dropout": 0.3}
    options = {"model": model, "strategy": {**SAMPLED, "fraction": 0.7}, "rounds": 6, "evaluate_every": 2}
    in_turn, own = fit("in turn", **options), fit("own", engine="local", **options)
    assert (in_turn.run_dir / "weights.safetensors").read_bytes() == (own.run_dir / "weights.safetensors").read_bytes()
    assert [row["train_loss"] for row in in_turn.rows] == [row["train_loss"] for row in own.rows]
    assert in_turn.metrics == own.metrics


def test_idle_clients_are_not_asked_for_losses(fit: Fit) -> None:
    run = fit(workers=50, batch_size=4, strategy=SAMPLED, rounds=8, log_every=1, evaluate_every=8)
    calls = [
        line.split(b'"call":"')[1].split(b'"')[0] for line in (run.run_dir / "trace.jsonl").read_bytes().splitlines()
    ]
    assert calls.count(b"delta") == 8 * 5
    assert (
        calls.count(b"tally") <= 7 * 5 + 2 * 50
    )  # of participants, and of all clients at the end and at the checkpoint
    assert all("train_loss" in row for row in run.rows)


class Reader:
    def __init__(self, data: Dataset) -> None:
        self._data = data

    def read(self) -> tuple[int, np.ndarray]:
        return id(self._data), self._data.inputs


def test_workers_of_a_process_share_one_read_only_data_set() -> None:
    inputs = np.ones((4, 2), np.float32)
    with ENGINES.create("simulated", {}) as engine:
        put = engine.put(Dataset(inputs, np.zeros(4, np.float32)))
        readers = [engine.spawn(Reader, put) for _ in range(3)]
        inputs[:] = 7
        places, found = zip(*engine.get([reader.read() for reader in readers]), strict=True)
    assert len(set(places)) == 1
    assert all(np.array_equal(each, np.ones((4, 2))) and not each.flags.writeable for each in found)


class CountedCalls(chimera.Callback):
    """Counts calls of Python functions by name, from the end of a round to that of another; by default in the whole run."""

    def __init__(self, first: int = 0, last: int = 0) -> None:
        self.calls: Counter[str] = Counter()
        self._first, self._last = first, last

    def on_wait(self, _: str) -> None:
        if not self._first:
            sys.setprofile(self._count)

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds in (self._first, self._last):
            sys.setprofile(self._count if progress.rounds == self._first else None)

    def on_end(self, _: chimera.Run) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.calls[frame.f_code.co_qualname] += 1


def sampled(clients: int, **options: Any) -> dict[str, Any]:
    data = Dataset(np.ones((clients, 2), np.float32), np.zeros(clients, np.float32))
    strategy = {"name": "fed-avg", "local_steps": 1, "fraction": 10 / clients}
    model = {"name": "linear-regression"}
    return {"data": (data, data), "model": model, "workers": clients, "batch_size": 1, "strategy": strategy, **options}


def participants(run: chimera.Run) -> set[str]:
    rows = (run.run_dir / "trace.jsonl").read_text().splitlines()
    return {row.split('"actor":"')[1].split('"')[0] for row in rows if '"call":"delta"' in row}


def test_only_clients_that_participate_are_created(fit: Fit, tmp_path: Path) -> None:
    whole, resumed = CountedCalls(), CountedCalls()
    options = sampled(200, rounds=6, evaluate_every=3)
    run = fit("run", callbacks=[whole], **options)
    assert whole.calls["Learner.__init__"] == len(participants(run)) < 60
    (tmp_path / "run" / "checkpoints" / "round-000000006.safetensors").unlink()
    fit("run", callbacks=[resumed], resume=True, **options)
    assert 10 <= resumed.calls["Learner.__init__"] <= 30


@pytest.mark.parametrize("clients", [2000, pytest.param(20_000, marks=pytest.mark.long)])
def test_idle_clients_add_no_calls_to_a_round(fit: Fit, clients: int) -> None:
    few, many = CountedCalls(2, 8), CountedCalls(2, 8)
    options = {"rounds": 10, "log_every": 1, "evaluate_every": 10, "partition": "contiguous"}
    fit("few", callbacks=[few], **sampled(200, **options))
    fit("many", callbacks=[many], **sampled(clients, **options))
    assert 1000 < many.calls.total() <= 1.3 * few.calls.total()


LOGISTIC = {"name": "logistic-regression"}
SMALL = {"name": "mlp", "hidden": [16]}


def both(fit: Fit, **options: Any) -> tuple[chimera.Run, chimera.Run, int]:
    """Train with steps taken alone and together; return both runs, and the number of steps that were taken together."""
    given = {"workers": 20, "batch_size": 8, "rounds": 2, "optimizer": {"name": "sgd", "lr": 0.1}, **options}
    strategy, counted, runs = given.pop("strategy", {}), CountedCalls(1, 2), []
    for batched in "off", "auto":
        table = {"name": "fed-avg", "local_steps": 2, "fraction": 0.5, **strategy, "batched": batched}
        runs.append(fit(batched, strategy=table, callbacks=[counted], log_every=1, **given))
        assert batched == "auto" or not counted.calls["BatchedSteps.step"]
    assert files_of(runs[0])["trace.jsonl"] == files_of(runs[1])["trace.jsonl"]
    return runs[0], runs[1], counted.calls["BatchedSteps.step"]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        pytest.param({"model": LOGISTIC}, 2, id="logistic regression"),
        pytest.param({"model": SMALL, "faults": ["label flip worker 1 at step 0"]}, 2, id="attacker"),
        pytest.param(
            {"model": SMALL, "strategy": {"hierarchical": {"edges": 2, "rounds": 2}}},
            8,  # two sites, two rounds of edges, two steps; of one round of the two, as CountedCalls counts them
            id="edge servers",
        ),
        pytest.param(
            {"model": SMALL, "partition": "quantity", "strategy": {"send": "weights", "over_selection": 1.5}},
            2,
            id="over-selection",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"model": LOGISTIC, "strategy": {"local_epochs": 1}, "partition": {"name": "dirichlet", "alpha": 0.5}},
            40,
            id="different numbers of steps",
            marks=pytest.mark.long,
        ),
    ],
)
def test_clients_that_step_together_learn_the_same(fit: Fit, options: dict[str, Any], steps: int) -> None:
    alone, together, taken = both(fit, **options)
    assert 0 < taken <= steps
    assert np.abs(alone.trained.parameters() - together.trained.parameters()).max() < 1e-6
    assert together.rows[-1]["train_loss"] == pytest.approx(alone.rows[-1]["train_loss"], abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"model": {**SMALL, "dropout": 0.2}}, id="dropout"),
        pytest.param({"model": {**SMALL, "batch_norm": True}}, id="batch norm", marks=pytest.mark.long),
        pytest.param({"model": SMALL, "optimizer": "adam"}, id="adam", marks=pytest.mark.long),
        pytest.param({"model": SMALL, "strategy": {"name": "fed-prox"}}, id="local rule"),
        pytest.param({"model": {"name": "mlp", "hidden": [512]}}, id="large model", marks=pytest.mark.long),
    ],
)
def test_clients_step_alone_where_a_batch_is_not_exact_or_not_faster(fit: Fit, options: dict[str, Any]) -> None:
    alone, together, taken = both(fit, **options)
    assert taken == 0
    assert files_of(alone) == files_of(together)


def test_a_mistake_in_the_model_is_described_for_steps_taken_together(fit: Fit) -> None:
    data = Dataset(np.ones((20, 4), np.float32), np.full(20, 2), ("a", "b", "c"))
    two_classes = torch.nn.Sequential(torch.nn.Linear(4, 2))
    strategy = {"name": "fed-avg", "local_steps": 1, "batched": "auto"}
    options = {"workers": 4, "batch_size": 2, "optimizer": {"name": "sgd", "lr": 0.1}, "rounds": 1}
    with pytest.raises(DataError, match="classes must be 0 to 1, targets go from 2 to 2"):
        fit(model=two_classes, data=(data, data), strategy=strategy, **options)
