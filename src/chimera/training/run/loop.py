"""The training loop: pull rounds from the strategy, evaluate, write checkpoints, recover from losses, stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from chimera.strategies.strategy import Round, Strategy
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.artifacts.checkpoint_writer import CheckpointWriter
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.fault_tolerance.injection import FaultScript
from chimera.training.fault_tolerance.recovery import Recovery
from chimera.training.messages.rejection import Rejections, Served
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.progress.budget import Budget
from chimera.training.progress.callback import Callback
from chimera.training.progress.history import History
from chimera.training.progress.metric_monitor import MetricMonitor
from chimera.training.progress.notifier import Notifier
from chimera.training.progress.peak import Peak
from chimera.training.progress.usage import UsageMeter
from chimera.training.run.evaluator import Evaluator
from chimera.training.run.in_flight import AHEAD, InFlight, Pace
from chimera.training.run.interrupt import Interrupt
from chimera.training.run.intervals import Intervals
from chimera.training.run.recorder import Recorder
from chimera.training.run.run_state import RunState
from chimera.training.run.tallies import Tallies


class TrainingLoop(RunState):
    """The loop of one run, whose actors have been started.

    Parameters
    ----------
    evaluator : evaluates the global model.
    train_size, batch_size : samples in the training set, and in a worker's batch.
    recovery : repairs the cluster after a loss.
    faults : faults to inject.
    guarantee : accounts for what a private run releases.
    watched : compares the metrics of evaluations.
    peak : the peak of a worker.
    stop_requested : whether the user has requested that the run stops.
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
        watched: MetricMonitor,
        peak: Peak,
        stop_requested: Callable[[], bool],
    ) -> None:
        recovery.go_back = self._go_back
        recovery.stopped = self._stopped
        self._engine, self._monitor, self._strategy, self._cluster = engine, monitor, strategy, cluster
        self._evaluator, self._train_size, self._batch_size = evaluator, train_size, batch_size
        self._budget, self._intervals, self._history = budget, intervals, history
        self._recovery, self._faults, self._guarantee = recovery, faults, guarantee
        self._watched, self._stop_requested = watched, stop_requested
        self._pace = Pace(engine)
        self._due = False  # whether the evaluation and the checkpoint of the last round may be missing
        self._in_round = False  # False during evaluation: a loss there interrupts no round
        self._interrupted = False  # a loss interrupted a round, and no call has ended since
        self._interrupt = Interrupt()
        self._writer = CheckpointWriter(checkpoints, self._interrupt.check_second, before=history.synchronize)
        self._rejections = Rejections()
        self._meter = UsageMeter(engine, cluster, history, strategy.traced, counted=strategy.counts, peak=peak)
        self._notifier = Notifier(self._meter, history, callbacks)
        self._tallies = Tallies(engine, monitor, cluster)
        self._recorder = Recorder(
            engine, cluster, evaluator, guarantee, self._meter, self._notifier, budget, train_size, self._tallies
        )
        self.peak_mb = self._meter.peak_mb
        self.metrics: dict[str, float] = {}
        self.staleness: Counter[int] = Counter()

    @property
    def peak_flops(self) -> float | None:
        """The peak of all workers together in FLOPs per second; None if it is not known."""
        return self._meter.peak_flops()

    @property
    def kept_round(self) -> int | None:
        """The round of the model that the run keeps; None if it keeps the last one."""
        return self._watched.kept_round

    def run(self) -> str:
        """Train until a limit is reached; return its name. `metrics` are then those of the model that the run keeps.

        Raises
        ------
        KeyboardInterrupt : Ctrl-C. Rounds in flight were completed and a checkpoint was written. A second signal stops at once.
        Terminated : SIGTERM or SIGUSR1, with the same effect.
        RunError : the run cannot continue, or a checkpoint could not be written.
        NonFiniteError : all gradients were rejected.
        """
        self._notifier.begin(self._recorder.progress())
        self._notifier.events(
            (
                "rows missing",
                "",
                f"{name} lacks {count} bytes that the checkpoint counts: the run continues without them",
            )
            for name, count in self._history.missing.items()
        )
        self._monitor.alarm = self._inject_faults
        self._monitor.alarm_s = self._meter.began_s + self._faults.next_s()
        with self._interrupt, self._writer:
            rounds = self._strategy.rounds(self._cluster)
            while True:
                self._writer.check()
                reason = self._limit()
                if reason is not None and self._ended_at == self.counters.rounds:
                    self._notifier.events(self._faults.missed())
                    self._rejections.check()
                    self.metrics = self._watched.load_kept(self._evaluator.model) or self._recorder.metrics
                    return reason
                try:
                    if reason is None and not self._due:
                        self._inject_faults()
                        if not self._interrupted:
                            self._meter.begin(self._samples_per_round())
                        self._in_round = True
                        self._advance(rounds, self._horizon())
                        self._in_round = False
                        self._due = (
                            True  # a loss from here on interrupts no round: the evaluation of this one is still due
                        )
                        self._count()
                        self._interrupted = False
                        self._cluster.raise_departed()
                    saved = self._evaluate_and_save()
                    self._due = False
                    if (reason is None and self._notifier.events(self._recovery.add_workers())) or saved:
                        # A run that resumes here restarts the strategy. This run does so, too, for the same weights.
                        rounds = self._strategy.rounds(self._cluster)
                        if self._engine.virtual_time:  # a run that resumes does not know the time of a round either
                            self._pace = Pace(self._engine)
                    if self._interrupt.requested:
                        if not saved:
                            self._checkpoint(self._evaluator.model.buffers())
                        self._writer.finish()
                        self._interrupt.check()
                except ActorLost as error:
                    self._recover_from(error)
                    rounds = self._strategy.rounds(self._cluster)

    def _samples_per_round(self) -> int:
        # Where other workers hold the data of lost workers, a round computes all of it.
        workers = self._cluster.sharded_workers if self._strategy.counts else self._cluster.workers
        return self._strategy.samples_per_round(len(workers), self._batch_size, self._train_size)

    def _count(self) -> None:
        """Count what the run has used. Samples of an interrupted round do not count: the round is repeated."""
        self._meter.count()
        if self._interrupted:
            self._meter.leave_out_repeats()

    def _horizon(self) -> int:
        left = self._budget.rounds_left(self.counters, self._train_size, self._samples_per_round())
        next_fault = self._faults.rounds_left(self.counters.rounds)
        joining = AHEAD if self._recovery.expecting else None
        ends = left, next_fault, joining, self._intervals.until_next(self.counters.rounds)
        return min(rounds for rounds in ends if rounds is not None)

    def _advance(self, rounds: Iterator[Round], horizon: int) -> None:
        """Run ``horizon`` rounds, some of them issued ahead.

        Run fewer after Ctrl-C or a preemption, when the time budget is used up, or when a checkpoint or a snapshot is due by
        its time.
        """
        self._tallies.begin()
        in_flight = InFlight(self._cluster, self._monitor, self._pace)
        by_time, issued = self._intervals.snapshot_every is None, False
        while True:
            try:
                in_flight.fill(rounds, horizon)
                if not issued and in_flight.issued >= horizon:
                    issued = True
                    self._tallies.ask_ahead()
            except ActorLost:
                self._end(in_flight, len(in_flight))  # rounds issued before the loss still complete
                raise
            if not in_flight:
                return
            self._end(in_flight, in_flight.await_some())
            max_seconds = self._budget.max_seconds
            time_is_over = max_seconds is not None and self._meter.seconds() >= max_seconds
            self._interrupt.check_second()
            asked = self._interrupt.requested or self._stop_requested() or self._recovery.arrived
            departed = self._cluster.continues and self._cluster.departed
            if asked or departed or time_is_over or self._overdue() or (by_time and self._snapshot_due()):
                horizon = in_flight.issued

    def _end(self, in_flight: InFlight, count: int) -> None:
        """Wait for the first ``count`` rounds in flight, and count them."""
        events, self._cluster.unreported = self._cluster.unreported, []
        self._notifier.events(events)
        for over, values in in_flight.over(count):
            self.counters.rounds += over.rounds
            self.counters.samples += over.batches * self._batch_size
            self.staleness.update(over.staleness)
            for value in values:
                if isinstance(value, Served):
                    self.staleness.update(value.staleness)
            self._cluster.round = self.counters.rounds
            rejected = self._rejections.of(values, self._cluster.workers, over.rounds)
            self._notifier.events(("gradient rejected", each.actor, each.detail) for each in rejected)
            self._guarantee.count(values)
        self._guarantee.count_released_sums(self._cluster.released_sums)

    def _stopped(self) -> bool:
        """Return whether the user has stopped the run while it waits for nodes; raise after Ctrl-C or a preemption."""
        if self._interrupt.requested is not None:
            self._writer.finish()
            self._interrupt.check()
        return self._stop_requested()

    def _limit(self) -> str | None:
        """Return the name of the limit that the run has reached; None if there is none."""
        measured = self._recorder.metrics if self._recorder.evaluated_at == self.counters.rounds else {}
        reached = self._budget.reached(self.counters, measured, self._train_size)
        if reached is None and self._watched.exhausted:
            reached = "patience"
        if reached is None and self._stop_requested() and self.counters.rounds:
            reached = "stop"
        return reached

    def _evaluate_and_save(self) -> bool:
        """Evaluate, log and write a checkpoint where each is due; return whether a checkpoint was written."""
        rounds, intervals, recorder = self.counters.rounds, self._intervals, self._recorder
        over = self._limit() is not None
        evaluate, log = rounds % intervals.evaluate_every == 0, rounds % intervals.log_every == 0
        unevaluated = (evaluate or over) and recorder.evaluated_at != rounds  # a stop may follow an evaluation
        if unevaluated:
            recorder.evaluate()
            if self._watched.evaluated(recorder.metrics, rounds, self._evaluator.model, due=evaluate):
                self._cluster.reduce_rates()
                self._notifier.events([("learning rate reduced", "", "the monitored metric did not improve")])
        over = over or self._limit() is not None
        buffers = self._evaluator.model.buffers()  # buffers of the last model, like the weights in checkpoints
        if over:
            self._watched.load_kept(self._evaluator.model)
        if evaluate or over:
            self._notifier.evaluated(self._evaluator.model, over)
        checkpoint = over or intervals.checkpoint_due(rounds) or self._overdue()
        if unevaluated or ((evaluate or log or over) and recorder.recorded_at != rounds):
            recorder.record(of_all=checkpoint)  # so that the metrics do not depend on whether the run ends here
        if checkpoint:
            self._checkpoint(buffers, over=over)
        elif self._snapshot_due():
            self._take_snapshot()
        return checkpoint

    def _inject_faults(self) -> float:
        """Inject the faults that are due; return the time, on the engine's clock, of the next one."""
        seconds, next_s = self._meter.seconds(), self._faults.next_s()
        if self._meter.began_s + next_s <= self._engine.now():  # rounded, the time since the start may be shorter
            seconds = max(seconds, next_s)
        self._notifier.events(self._faults.inject_due(self._engine, self._cluster, self.counters.rounds, seconds))
        return self._meter.began_s + self._faults.next_s()

    def _recover_from(self, error: ActorLost) -> None:
        """Repair the cluster and report its events; raise if the run cannot continue."""
        self._guarantee.count_released_sums(
            self._cluster.released_sums
        )  # the round was interrupted, but a sum may have been read
        if self._in_round:
            self._interrupted = True
            self._count()
        try:
            self._recover(error)
        except ActorLost as another:
            if another is error:
                raise
            self._recover_from(another)  # another actor died during the repair

    def _recover(self, error: ActorLost) -> None:
        if self._notifier.events(self._recovery.recover(error)):
            self.counters.lost_rounds += self._in_round  # the round that the loss interrupted
            self._in_round = False
        if self._interrupted:
            self._meter.leave_out_repeats()  # calls may have ended during the repair
