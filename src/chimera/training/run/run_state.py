"""The state of a run: checkpoints, snapshots in memory, and the return to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from chimera.core.counted import counted
from chimera.core.engine import Engine
from chimera.core.parameters import Flat
from chimera.strategies.strategy import Strategy
from chimera.training.artifacts.checkpoint_writer import CheckpointWriter
from chimera.training.artifacts.frozen_part import frozen_part
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.fault_tolerance.injection import FaultScript
from chimera.training.messages.rejection import Rejections
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.progress.budget import Counters
from chimera.training.progress.history import History
from chimera.training.progress.metric_monitor import MetricMonitor
from chimera.training.progress.usage import UsageMeter
from chimera.training.run.evaluator import Evaluator
from chimera.training.run.intervals import Intervals
from chimera.training.run.recorder import Recorder


class RunState:
    """The part of a `TrainingLoop` that collects and restores the state of the run."""

    staleness: Counter[int]
    _engine: Engine
    _strategy: Strategy
    _cluster: TrainingCluster
    _evaluator: Evaluator
    _recorder: Recorder
    _meter: UsageMeter
    _history: History
    _guarantee: Guarantee
    _rejections: Rejections
    _watched: MetricMonitor
    _faults: FaultScript
    _intervals: Intervals
    _writer: CheckpointWriter
    _ended_at = -1  # the last round after which the run was over, evaluated, and written
    _saved_s = 0.0  # time of the last checkpoint, since training started
    _snapshot: dict[str, Any] | None = None

    @property
    def counters(self) -> Counters:
        """The usage of the run so far."""
        return self._meter.counters

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint. Call this before `run`."""
        self._meter.counters = Counters(**state["counters"])
        self._recorder.restore(state)
        self._ended_at = state.get("ended_at", self.counters.rounds)  # older checkpoints have none
        self._watched.restore(state.get("watched", {}))
        self.staleness, self._saved_s = _staleness(state), self.counters.seconds
        self._guarantee.restore(state.get("guarantee", {}))  # older checkpoints have none
        unknown = {"count": 0, "applied": self.counters.rounds > 0, "first": ""}  # of older checkpoints
        self._rejections.restore(state.get("rejections", unknown))
        self._cluster.round = self.counters.rounds
        self._strategy.restore(state["strategy"])
        self._cluster.restore(state["cluster"])
        self._cluster.reduce_rates()
        self._snapshot = state
        self._evaluator.model.load(state["weights"])
        self._evaluator.model.load_buffers(state["buffers"])
        self._faults.forget(self.counters.rounds, self.counters.seconds)
        self._engine.restore(state["engine"])  # last: the time that restoring took does not count
        self._engine.trace()
        goes_on = state["engine"] and self._engine.now() == state["engine"]["now_s"]
        self._meter.began_s = state["began_s"] if goes_on else self._engine.now() - self.counters.seconds

    def _overdue(self) -> bool:
        """Return whether a checkpoint is due by its time; in real time not while the last one is being written."""
        overdue = self._intervals.checkpoint_overdue(self._meter.seconds() - self._saved_s)
        return overdue and (self._engine.virtual_time or not self._writer.busy)

    def _snapshot_due(self) -> bool:
        """Return whether a snapshot is due, by the number of rounds, or by rounds and time."""
        every, rounds = self._intervals.snapshot_every, self.counters.rounds
        if every is not None:
            return rounds % every == 0
        last = Counters(**self._snapshot["counters"]) if self._snapshot else Counters()
        return self._intervals.snapshot_overdue(rounds - last.rounds, self._meter.seconds() - last.seconds)

    def _checkpoint(self, buffers: Flat, *, over: bool = False) -> None:
        """Collect the state of the run, and start to write it; ``over``: the run ends here."""
        self._writer.finish()  # before the state is collected, so that at most two states are in memory
        rounds = self.counters.rounds
        self._cluster.settle()
        weights = self._evaluator.weights()
        # In virtual time all workers are asked again, so that runs keep the timeline of earlier versions.
        self._recorder.collect_losses(of_all=self._engine.virtual_time or self._recorder.collected_at != rounds)
        cluster = self._cluster.state()
        self._meter.count(between_rounds=True)
        self._saved_s = self.counters.seconds
        state = {
            **self._take_snapshot(cluster),
            **self._recorder.state(),
            "ended_at": rounds if over else self._ended_at,
            "files": self._history.sizes(),
            "weights": weights,
            "buffers": buffers,
            **frozen_part(self._evaluator.model),
            "began_s": self._meter.began_s,
            "guarantee": self._guarantee.state(),
            "rejections": self._rejections.state(),
            "engine": self._engine.state(),
        }
        self._writer.write(rounds, state)
        self._ended_at = state["ended_at"]

    def _take_snapshot(self, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
        """Keep the state from which the run continues after a loss of parameters."""
        self._snapshot = {
            "counters": asdict(self.counters),
            "staleness": dict(self.staleness),
            "strategy": self._strategy.state(),
            "cluster": cluster or self._cluster.parameters(),
            "watched": self._watched.state(),
        }
        return self._snapshot

    def _go_back(self) -> str:
        """Return the run to its last snapshot, or to its start; return a description for the event."""
        snapshot = self._snapshot
        then = Counters(**snapshot["counters"]) if snapshot else Counters()
        lost = self._meter.go_back_to(then)
        self._cluster.round = then.rounds
        recorder = self._recorder
        self._ended_at = recorder.evaluated_at = recorder.recorded_at = recorder.collected_at = -1
        self._due = False
        self._watched.restore(snapshot["watched"] if snapshot else {})
        self.staleness = _staleness(snapshot) if snapshot else Counter()
        if snapshot:
            self._strategy.restore(snapshot["strategy"])
            self._cluster.return_to(snapshot["cluster"])
            self._cluster.reduce_rates()
        else:
            self._cluster.start_over()
        return (
            f"{'the snapshot' if snapshot else 'the parameters'} of round {then.rounds}; {counted(lost, 'round')} lost"
        )


def _staleness(state: dict[str, Any]) -> Counter[int]:
    return Counter({int(updates): count for updates, count in state["staleness"].items()})
