"""The loop of a run: pull rounds from the strategy, look at the model when it is time, survive losses, stop."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from chimera.codecs.codec import decode
from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, NonFiniteError
from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset
from chimera.models.buffers import merge_buffers
from chimera.models.model import Model
from chimera.strategies.strategy import Round, Strategy
from chimera.training.budget import Budget, Counters
from chimera.training.cadence import Cadence
from chimera.training.callback import Callback, Event, Progress
from chimera.training.checkpoint import Checkpoints
from chimera.training.cluster import TrainingCluster
from chimera.training.history import History
from chimera.training.interrupt import Interrupt
from chimera.training.recovery import Recovery

_LOOKS = {
    "weights",
    "loss",
    "buffers",
    "load_buffers",
    "state",
    "step",
}  # calls that the loop itself makes, between rounds
_AHEAD = 16  # rounds that the driver issues before their results are there


class TrainingLoop:
    """One run, from the moment its actors are there.

    Parameters
    ----------
    model : the driver's copy, in which the global model is looked at.
    test : the data it is evaluated on.
    train_size, batch_size : samples in the training set, and in a worker's batch.
    buffers : the policy by which the workers' buffers are merged.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        strategy: Strategy,
        cluster: TrainingCluster,
        model: Model,
        test: Dataset,
        train_size: int,
        batch_size: int,
        budget: Budget,
        cadence: Cadence,
        history: History,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback],
        recovery: Recovery,
        buffers: str,
    ) -> None:
        self._engine, self._strategy, self._cluster, self._model = engine, strategy, cluster, model
        self._test, self._train_size, self._batch_size = test, train_size, batch_size
        self._budget, self._cadence, self._history, self._checkpoints = budget, cadence, history, checkpoints
        self._callbacks, self._recovery, self._buffers = callbacks, recovery, buffers
        self._names = [worker.name for worker in cluster.workers]
        self._loss: float | None = None
        self._losses = 0.0, 0  # summed, and how many, since the last row of metrics
        self._looked_at = self._checkpointed_at = -1
        self._interrupt = Interrupt()
        self.counters = Counters()
        self.metrics: dict[str, float] = {}
        self.staleness: Counter[int] = Counter()
        self._began_s = engine.now()

    def run(self) -> str:
        """Train until the budget is used or the target met, and return which.

        Raises
        ------
        KeyboardInterrupt : Ctrl-C; the rounds under way were ended and a checkpoint written. A second one stops at once.
        RunError : the run cannot go on.
        """
        for callback in self._callbacks:
            callback.on_start(self._progress())
        with self._interrupt:
            rounds = self._strategy.rounds(self._cluster)
            while True:
                reason = self._budget.reached(self.counters, self.metrics, self._train_size)
                if reason is not None and self._checkpointed_at == self.counters.rounds:
                    return reason
                try:
                    if reason is None:
                        self._advance(rounds, self._horizon())
                        self._count()
                    if self._look():
                        # A run that is resumed here starts the strategy anew; so does this one, and both go the same way.
                        rounds = self._strategy.rounds(self._cluster)
                    if self._interrupt.asked:
                        self._checkpoint()
                        raise KeyboardInterrupt
                except ActorLost as error:
                    self._survive(error)
                    rounds = self._strategy.rounds(self._cluster)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint holds; before `run`."""
        self.counters = Counters(**state["counters"])
        self.metrics = state["metrics"]
        self._losses = tuple(state["losses"])
        self.staleness = Counter({int(updates): count for updates, count in state["staleness"].items()})
        self._looked_at = self._checkpointed_at = self.counters.rounds
        self._cluster.round = self.counters.rounds
        self._strategy.restore(state["strategy"])
        self._cluster.restore(state["cluster"])
        self._model.load(state["weights"])
        self._model.load_buffers(state["buffers"])
        self._engine.restore(state["engine"])  # last: what restoring took is not part of the run
        self._engine.trace()
        goes_on = state["engine"] and self._engine.now() == state["engine"]["now_s"]
        self._began_s = state["began_s"] if goes_on else self._engine.now() - self.counters.seconds

    def _horizon(self) -> int:
        samples = self._strategy.batches_per_round(len(self._cluster.workers)) * self._batch_size
        left = self._budget.rounds_left(self.counters, self._train_size, samples)
        next_look = self._cadence.until_next(self.counters.rounds)
        return next_look if left is None else min(left, next_look)

    def _advance(self, rounds: Iterator[Round], horizon: int) -> None:
        """Run ``horizon`` rounds, some issued ahead; fewer if time is over or the user has had enough."""
        window: deque[Round] = deque()
        issued = 0
        while True:
            while issued < horizon and len(window) < _AHEAD:
                self._cluster.horizon = horizon - issued
                try:
                    window.append(next(rounds))
                except ActorLost:
                    self._end(window, len(window))  # what was issued before has happened all the same
                    raise
                issued += window[-1].rounds
            if not window:
                return
            # The driver wakes once for several rounds: on a busy machine it costs the workers time.
            last = window[min(_AHEAD // 2, len(window)) - 1]
            self._engine.wait(last.done, len(last.done))
            self._end(window, min(_AHEAD // 2, len(window)))
            max_seconds = self._budget.max_seconds
            if self._interrupt.asked or (max_seconds is not None and self._seconds() >= max_seconds):
                horizon = issued

    def _end(self, window: deque[Round], count: int) -> None:
        """Wait for the first ``count`` rounds of the window, and count them."""
        rounds = [window.popleft() for _ in range(count)]
        asked_at_once = True
        try:
            self._engine.get([ref for over in rounds for ref in over.done])  # some engines charge by the question
        except Exception:  # raised again below, once the rounds before it are counted
            asked_at_once = False
        for over in rounds:
            if not asked_at_once:
                self._engine.get(over.done)
            self.counters.rounds += over.rounds
            self.staleness.update(over.staleness)
            self._cluster.round = self.counters.rounds

    def _count(self, looked: bool = False) -> None:
        """Bring the counters up to date from the trace. What looking costs is in the seconds, not in the bytes."""
        rows = self._engine.trace()
        began_s, shifted = self._began_s, msgspec.structs.replace
        self._history.add_trace(shifted(r, start_s=r.start_s - began_s, end_s=r.end_s - began_s) for r in rows)
        workers = set(self._names)
        used = self.counters
        used.seconds = self._seconds()
        for row in rows:
            if row.actor in workers and not (looked and row.call in _LOOKS):
                used.samples += row.samples
                used.bytes_up += row.bytes_out
                used.bytes_down += row.bytes_in

    def _look(self) -> bool:
        """Look at the model as far as it is time; return whether a checkpoint was written."""
        rounds, cadence = self.counters.rounds, self._cadence
        over = self._budget.reached(self.counters, {}, self._train_size) is not None
        evaluate, log = rounds % cadence.evaluate_every == 0, rounds % cadence.log_every == 0
        if evaluate or over:
            self._evaluate()
            over = over or self._budget.reached(self.counters, self.metrics, self._train_size) == "target"
        if evaluate or log or over:
            self._record()
        checkpoint = over or rounds % cadence.checkpoint_every == 0
        if checkpoint:
            self._checkpoint()
        return checkpoint

    def _evaluate(self) -> None:
        flat = self._weights()
        self._model.load(flat)
        self._merge_buffers()
        self.metrics = self._model.evaluate((self._test.inputs, self._test.targets))
        self._looked_at = self.counters.rounds
        if not np.isfinite(self.metrics["loss"]) and not np.isfinite(flat).all():
            raise NonFiniteError(f"round {self.counters.rounds}: parameters of the model are NaN or infinite")

    def _record(self) -> None:
        self._collect_losses()
        total, count = self._losses
        self._loss, self._losses = (total / count if count else None), (0.0, 0)
        self._count(looked=True)
        row: dict[str, Any] = {
            "round": self.counters.rounds,
            "epoch": self.counters.samples / self._train_size,
            **{k: v for k, v in asdict(self.counters).items() if k != "rounds"},
        }
        if self._loss is not None:
            row["train_loss"] = self._loss
        if self._looked_at == self.counters.rounds:
            row.update(self.metrics)
        self._history.add_metrics(row)
        progress = self._progress()
        for callback in self._callbacks:
            callback.on_progress(progress)

    def _collect_losses(self) -> None:
        """Add the training losses that the workers have seen since the last time; those of the late come later."""
        found = [self._losses, *self._engine.get([worker.loss() for worker in self._cluster.on_time()])]
        self._losses = sum(loss for loss, _ in found), sum(count for _, count in found)

    def _checkpoint(self) -> None:
        self._cluster.settle()
        weights = self._weights()
        if not np.isfinite(weights).all():
            raise NonFiniteError(f"round {self.counters.rounds}: parameters of the model are NaN or infinite")
        self._collect_losses()
        cluster = self._cluster.state()
        self._count(looked=True)
        state = {
            "counters": asdict(self.counters),
            "metrics": self.metrics,
            "losses": self._losses,
            "staleness": dict(self.staleness),
            "files": self._history.sizes(),
            "strategy": self._strategy.state(),
            "cluster": cluster,
            "weights": weights,
            "buffers": self._model.buffers(),
            "began_s": self._began_s,
            "engine": self._engine.state(),
        }
        self._checkpoints.write(self.counters.rounds, state)
        self._checkpointed_at = self.counters.rounds

    def _weights(self) -> Flat:
        shards = self._engine.get(list(self._strategy.model(self._cluster)))
        return np.concatenate([decode(shard) for shard in shards])

    def _merge_buffers(self) -> None:
        """Bring the workers' buffers together in the driver's model and, unless they are to stay apart, in the workers."""
        if self._model.buffers().size == 0:
            return
        workers = self._cluster.on_time()
        merged = merge_buffers(self._engine.get([worker.buffers() for worker in workers]), self._buffers)
        if merged is not None:
            self._model.load_buffers(merged)
            ref = self._engine.put(merged)
            self._engine.get([worker.load_buffers(ref) for worker in workers])

    def _survive(self, error: ActorLost) -> None:
        """Put the cluster right, and tell what happened; or raise, if the run cannot go on."""
        try:
            self._recover(error)
        except ActorLost as another:
            if another is error:
                raise
            self._survive(another)  # somebody else died meanwhile

    def _recover(self, error: ActorLost) -> None:
        for what, actor, detail in self._recovery.survive(error):
            self._count()
            event = Event(what, self._seconds(), self.counters.rounds, actor, detail)
            self._history.add_event(event)
            for callback in self._callbacks:
                callback.on_event(event)

    def _progress(self) -> Progress:
        used = self.counters
        living = {worker.name for worker in self._cluster.workers}
        return Progress(
            rounds=used.rounds,
            epochs=used.samples / self._train_size,
            samples=used.samples,
            seconds=used.seconds,
            bytes_up=used.bytes_up,
            bytes_down=used.bytes_down,
            loss=self._loss,
            metrics=self.metrics,
            fraction=self._budget.fraction(used, self._train_size),
            workers={name: "running" if name in living else "lost" for name in self._names},
        )

    def _seconds(self) -> float:
        return self._engine.now() - self._began_s
