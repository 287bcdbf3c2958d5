"""Tests of the progress that callbacks receive about workers and their queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import chimera
from chimera.core.engine import Engine
from chimera.data.dataset import Dataset
from chimera.data.partition import Partitioner
from chimera.data.provider import PartitionedData
from chimera.data.split import Split
from chimera.training.experiment.resolve import split_of
from chimera.training.progress.budget import Budget, Counters
from chimera.training.progress.usage import UsageMeter
from chimera.training.run.intervals import Intervals
from training.conftest import Fit


class Watcher(chimera.Callback):
    def __init__(self) -> None:
        self.seen: list[chimera.Progress] = []

    def on_start(self, progress: chimera.Progress) -> None:
        self.seen.append(progress)

    def on_progress(self, progress: chimera.Progress) -> None:
        self.seen.append(progress)


@dataclass(frozen=True)
class Queued(PartitionedData):
    """Data in memory behind a queue that is half full."""

    def fill(self) -> dict[str, float]:
        return {"batcher 0": 0.5}


class QueuedDataset(Dataset):
    def provider(self, engine: Engine, partition: Partitioner, *, workers: int, batch_size: int, seed: int) -> Queued:
        return Queued(self, partition, batch_size, seed)


@pytest.mark.parametrize("strategy", ["parameter-server", "async-parameter-server", "all-reduce"])
def test_worker_samples_add_up_to_the_run_total(fit: Fit, strategy: str) -> None:
    watcher = Watcher()
    fit(strategy=strategy, callbacks=[watcher], log_every=10)
    assert len(watcher.seen) >= 3
    for progress in watcher.seen:
        assert sum(progress.samples_by_worker.values()) == progress.samples
        assert set(progress.samples_by_worker) <= set(progress.workers)
        assert progress.fill == {}
    assert all(watcher.seen[-1].samples_by_worker[name] > 0 for name in watcher.seen[-1].workers)


def test_the_next_pause_is_the_earliest_of_all_intervals() -> None:
    cadence = Intervals(log_every=3, evaluate_every=4, checkpoint_every=8, snapshot_every=5)
    looks, rounds = list[int](), 0
    while rounds < 24:
        rounds += cadence.until_next(rounds)
        looks.append(rounds)
    assert looks == [each for each in range(1, 25) if 0 in (each % 3, each % 4, each % 5)]


def test_by_default_a_snapshot_is_due_after_a_hundred_rounds_and_a_second() -> None:
    budget = Budget(rounds=10_000)
    real, virtual = (Intervals.of(budget, 5000.0, 2, log_every=5000, virtual_time=virtual) for virtual in (False, True))
    assert (real.until_next(0), virtual.until_next(0)) == (5000, 100)
    assert [real.snapshot_overdue(*since) for since in ((150, 0.9), (99, 2.0), (100, 1.0))] == [False, False, True]


def test_going_back_counts_no_samples_of_lost_rounds() -> None:
    meter = UsageMeter.__new__(UsageMeter)  # without an engine
    meter.counters, meter._since = Counters(rounds=15, samples=150), (0, 0, 10)
    assert meter.go_back_to(Counters(rounds=10, samples=90)) == 5
    assert (meter.counters.rounds, meter.counters.samples, meter.counters.lost_rounds) == (10, 90, 5)


def test_going_back_keeps_the_samples_of_each_worker(fit: Fit) -> None:
    watcher = Watcher()
    run = fit(callbacks=[watcher], log_every=1, snapshot_every=10, faults=["kill server 0 at step 15"])
    assert run.cost.lost_rounds > 0
    done = [sum(progress.samples_by_worker.values()) for progress in watcher.seen]
    assert done == sorted(done)
    assert done[-1] > watcher.seen[-1].samples


def test_the_reported_fill_is_the_fill_of_the_supply(fit: Fit) -> None:
    split, watcher = split_of("digits", 0), Watcher()
    arrays: dict[str, Any] = {"inputs": split.train.inputs, "targets": split.train.targets}
    fit(data=Split(QueuedDataset(**arrays), split.test), callbacks=[watcher])
    assert all(progress.fill == {"batcher 0": 0.5} for progress in watcher.seen)
