"""The training loop: pull rounds from the strategy, evaluate, write checkpoints, recover from losses, stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from chimera.strategies.strategy import Round, Strategy
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.fault_tolerance.injection import FaultScript
from chimera.training.fault_tolerance.recovery import Recovery
from chimera.training.messages.rejection import Rejections
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.progress.budget import Budget, Counters
from chimera.training.progress.callback import Callback, Progress
from chimera.training.progress.history import History
from chimera.training.progress.notifier import Notifier
from chimera.training.progress.usage import UsageMeter
from chimera.training.run.evaluator import Evaluator
from chimera.training.run.in_flight import AHEAD, InFlight
from chimera.training.run.interrupt import Interrupt
from chimera.training.run.intervals import Intervals


class TrainingLoop:
    """The loop of one run, whose actors have been started.

    Parameters
    ----------
    evaluator : evaluates the global model.
    train_size, batch_size : samples in the training set, and in a worker's batch.
    recovery : repairs the cluster after a loss.
    faults : faults to inject.
    guarantee : accounts for what a private run releases.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        monitor: HeartbeatMonitor,
        strategy: Strategy,
        cluster: TrainingCluster,
        evaluator: Evaluator,
        train_size: int,
        batch_size: int,
        budget: Budget,
        intervals: Intervals,
        history: History,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback],
        recovery: Recovery,
        faults: FaultScript,
        guarantee: Guarantee,
    ) -> None:
        recovery.go_back = self._go_back
        self._engine, self._monitor, self._strategy, self._cluster = engine, monitor, strategy, cluster
        self._evaluator, self._train_size, self._batch_size = evaluator, train_size, batch_size
        self._budget, self._intervals, self._history, self._checkpoints = budget, intervals, history, checkpoints
        self._recovery, self._faults, self._guarantee = recovery, faults, guarantee
        self._loss: float | None = None
        self._losses = 0.0, 0  # summed, and how many, since the last row of metrics
        self._evaluated_at = self._checkpointed_at = -1
        self._snapshot: dict[str, Any] | None = None
        self._in_round = False  # False during evaluation: a loss there interrupts no round
        self._interrupt = Interrupt()
        self._rejections = Rejections()
        self._meter = UsageMeter(engine, cluster, history, strategy.traced, counted=strategy.counts)
        self._notifier = Notifier(self._meter, history, callbacks)
        self.peak_mb = self._meter.peak_mb
        self.metrics: dict[str, float] = {}
        self.staleness: Counter[int] = Counter()

    @property
    def counters(self) -> Counters:
        """What the run has used so far."""
        return self._meter.counters

    def run(self) -> str:
        """Train until a budget is used up or the target is reached; return which.

        Raises
        ------
        KeyboardInterrupt : Ctrl-C. Rounds in flight were completed and a checkpoint was written. A second one stops at once.
        RunError : the run cannot continue.
        """
        self._notifier.begin(self._progress())
        self._monitor.alarm = self._strike
        self._monitor.alarm_s = self._meter.began_s + self._faults.next_s()
        with self._interrupt:
            rounds = self._strategy.rounds(self._cluster)
            while True:
                reason = self._budget.reached(self.counters, self.metrics, self._train_size)
                if reason is not None and self._checkpointed_at == self.counters.rounds:
                    self._notifier.events(self._faults.missed())
                    return reason
                try:
                    if reason is None:
                        self._strike()
                        self._in_round = True
                        self._advance(rounds, self._horizon())
                        self._in_round = False
                        self._meter.count()
                    if self._evaluate_and_save() or (reason is None and self._notifier.events(self._recovery.grow())):
                        # A run that resumes here restarts the strategy. So does this one: both then compute the same weights.
                        rounds = self._strategy.rounds(self._cluster)
                    if self._interrupt.requested:
                        self._checkpoint()
                        raise KeyboardInterrupt
                except ActorLost as error:
                    self._survive(error)
                    rounds = self._strategy.rounds(self._cluster)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint. Call this before `run`."""
        self._meter.counters = Counters(**state["counters"])
        self.metrics = state["metrics"]
        self._losses = tuple(state["losses"])
        self._evaluated_at = self._checkpointed_at = self.counters.rounds
        self.staleness = _staleness(state)
        self._guarantee.restore(state.get("guarantee", {}))  # older checkpoints have none
        self._cluster.round = self.counters.rounds
        self._strategy.restore(state["strategy"])
        self._cluster.restore(state["cluster"])
        self._snapshot = state
        self._evaluator.model.load(state["weights"])
        self._evaluator.model.load_buffers(state["buffers"])
        self._faults.forget(self.counters.rounds, self.counters.seconds)
        self._engine.restore(state["engine"])  # last: the time that restoring took does not count
        self._engine.trace()
        goes_on = state["engine"] and self._engine.now() == state["engine"]["now_s"]
        self._meter.began_s = state["began_s"] if goes_on else self._engine.now() - self.counters.seconds

    def _horizon(self) -> int:
        # Where other workers hold the data of lost workers, a round computes all of it.
        workers = self._cluster.sharded_workers if self._strategy.counts else self._cluster.workers
        samples = self._strategy.samples_per_round(len(workers), self._batch_size, self._train_size)
        left = self._budget.rounds_left(self.counters, self._train_size, samples)
        next_fault = self._faults.rounds_left(self.counters.rounds)
        joining = AHEAD if self._recovery.expecting else None
        ends = left, next_fault, joining, self._intervals.until_next(self.counters.rounds)
        return min(rounds for rounds in ends if rounds is not None)

    def _advance(self, rounds: Iterator[Round], horizon: int) -> None:
        """Run ``horizon`` rounds, some of them issued ahead; fewer after Ctrl-C or when the time budget is used up."""
        in_flight = InFlight(self._cluster, self._monitor)
        while True:
            try:
                in_flight.fill(rounds, horizon)
            except ActorLost:
                self._end(in_flight, len(in_flight))  # rounds issued before the loss still complete
                raise
            if not in_flight:
                return
            self._end(in_flight, in_flight.await_some())
            max_seconds = self._budget.max_seconds
            time_is_over = max_seconds is not None and self._meter.seconds() >= max_seconds
            if self._interrupt.requested or time_is_over:
                horizon = in_flight.issued

    def _end(self, in_flight: InFlight, count: int) -> None:
        """Wait for the first ``count`` rounds in flight, and count them."""
        events, self._cluster.unreported = self._cluster.unreported, []
        self._notifier.events(events)
        for over, values in in_flight.over(count):
            self.counters.rounds += over.rounds
            self.counters.samples += over.batches * self._batch_size
            self.staleness.update(over.staleness)
            self._cluster.round = self.counters.rounds
            rejected = self._rejections.of(values, self._cluster.workers)
            self._notifier.events(("gradient rejected", each.actor, each.detail) for each in rejected)
            self._guarantee.count(values)
        self._guarantee.count_released_sums(self._cluster.released_sums)

    def _evaluate_and_save(self) -> bool:
        """Evaluate, log and write a checkpoint where each is due; return whether a checkpoint was written."""
        rounds, intervals = self.counters.rounds, self._intervals
        over = self._budget.reached(self.counters, {}, self._train_size) is not None
        evaluate, log = rounds % intervals.evaluate_every == 0, rounds % intervals.log_every == 0
        if evaluate or over:
            self.metrics = {**self._evaluator.evaluate(), **self._guarantee.measures()}
            self._evaluated_at = rounds
            over = over or self._budget.reached(self.counters, self.metrics, self._train_size) == "target"
            self._notifier.evaluated(self._evaluator.model, over)
        checkpoint = over or rounds % intervals.checkpoint_every == 0
        if evaluate or log or over:
            self._record(of_all=checkpoint)  # so that the metrics do not depend on whether the run ends here
        if checkpoint:
            self._checkpoint()
        elif rounds % intervals.snapshot_every == 0:
            self._take_snapshot()
        return checkpoint

    def _record(self, *, of_all: bool) -> None:
        self._collect_losses(of_all=of_all)
        total, count = self._losses
        self._loss, self._losses = (total / count if count else None), (0.0, 0)
        self._meter.count(between_rounds=True)
        row: dict[str, Any] = {
            "round": self.counters.rounds,
            "epoch": self.counters.samples / self._train_size,
            **{k: v for k, v in asdict(self.counters).items() if k != "rounds"},
        }
        if self._loss is not None:
            row["train_loss"] = self._loss
        if self._evaluated_at == self.counters.rounds:
            row.update(self.metrics)
            row.update(self._guarantee.instead())
            if self._evaluator.of_clients:
                row["clients"] = self._evaluator.of_clients
        self._notifier.measured(row, self._progress())

    def _collect_losses(self, *, of_all: bool) -> None:
        # Idle workers have no losses to report. Where workers drive themselves, the trace may list them too late.
        if of_all:
            self._meter.worked.update(self._cluster.names)
        tallies = self._evaluator.tallies(self._meter.worked)
        self._meter.add(tallies)
        total, count = self._losses
        self._losses = total + sum(each.loss for each in tallies), count + sum(each.losses for each in tallies)

    def _checkpoint(self) -> None:
        self._cluster.settle()
        weights = self._evaluator.weights()
        self._collect_losses(of_all=True)
        cluster = self._cluster.state()
        self._meter.count(between_rounds=True)
        state = {
            **self._take_snapshot(cluster),
            "metrics": self.metrics,
            "losses": self._losses,
            "files": self._history.sizes(),
            "weights": weights,
            "buffers": self._evaluator.model.buffers(),
            "began_s": self._meter.began_s,
            "guarantee": self._guarantee.state(),
            "engine": self._engine.state(),
        }
        self._checkpoints.write(self.counters.rounds, state)
        self._checkpointed_at = self.counters.rounds

    def _take_snapshot(self, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
        """Keep the state from which the run continues after a loss of parameters."""
        self._snapshot = {
            "counters": asdict(self.counters),
            "staleness": dict(self.staleness),
            "strategy": self._strategy.state(),
            "cluster": cluster or self._cluster.parameters(),
        }
        return self._snapshot

    def _go_back(self) -> str:
        """Return the run to its last snapshot, or to its start; return a description for the event."""
        snapshot = self._snapshot
        then = Counters(**snapshot["counters"]) if snapshot else Counters()
        lost = self._meter.go_back_to(then)
        self._cluster.round = then.rounds
        self._evaluated_at = min(self._evaluated_at, then.rounds)
        self._checkpointed_at = min(self._checkpointed_at, then.rounds)
        self.staleness = _staleness(snapshot) if snapshot else Counter()
        if snapshot:
            self._strategy.restore(snapshot["strategy"])
            self._cluster.restore_parameters(snapshot["cluster"])
        else:
            self._cluster.start_over()
        return f"{'the snapshot' if snapshot else 'the parameters'} of round {then.rounds}; {lost} rounds are lost"

    def _strike(self) -> float:
        """Inject the faults that are due; return the time, on the engine's clock, of the next one."""
        now = self.counters.rounds, self._meter.seconds()
        self._notifier.events(self._faults.strike(self._engine, self._cluster, *now))
        return self._meter.began_s + self._faults.next_s()

    def _survive(self, error: ActorLost) -> None:
        """Repair the cluster and report its events; raise if the run cannot continue."""
        self._guarantee.count_released_sums(
            self._cluster.released_sums
        )  # the round was interrupted, but a sum may have been read
        try:
            self._recover(error)
        except ActorLost as another:
            if another is error:
                raise
            self._survive(another)  # another actor died during the repair

    def _recover(self, error: ActorLost) -> None:
        if self._notifier.events(self._recovery.survive(error)):
            self.counters.lost_rounds += self._in_round  # the round that the loss interrupted
            self._in_round = False

    def _progress(self) -> Progress:
        used = self.counters
        living = {worker.name for worker in self._cluster.workers}
        return Progress(
            rounds=used.rounds,
            epochs=used.samples / self._train_size,
            samples=used.samples,
            seconds=used.seconds,
            virtual_time=self._engine.virtual_time,
            bytes_up=used.bytes_up,
            bytes_down=used.bytes_down,
            loss=self._loss,
            metrics=self.metrics,
            fraction=self._budget.fraction(used, self._train_size),
            workers={name: "running" if name in living else "lost" for name in self._cluster.names},
            samples_by_worker=dict(self._meter.samples_by_worker),
            fill=self._cluster.queue_fill() | {name: own for name, own in self._meter.fill.items() if name in living},
        )


def _staleness(state: dict[str, Any]) -> Counter[int]:
    return Counter({int(updates): count for updates, count in state["staleness"].items()})
