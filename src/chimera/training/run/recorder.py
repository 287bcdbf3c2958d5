"""Rows of metrics and the progress of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ConfigurationError
from chimera.models.own_optimizer import Position
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.progress.budget import Budget
from chimera.training.progress.callback import Progress
from chimera.training.progress.notifier import Notifier
from chimera.training.progress.usage import UsageMeter
from chimera.training.run.evaluator import Evaluator
from chimera.training.run.tallies import Tallies

_TOKENS = "tokens", "flops"  # columns only of models that report them


class Recorder:
    """Collects losses from the workers, and reports rows of metrics and the progress.

    Parameters
    ----------
    train_size : samples in the training set.
    tallies : collects the tallies of workers.

    Attributes
    ----------
    losses : sum and number of the training losses since the last row.
    metrics : metrics of the last evaluation.
    evaluated_at, recorded_at : rounds of the last evaluation and of the last row; -1 if there is none.
    collected_at : round after which the losses of all workers were last collected; -1 if there is none.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: TrainingCluster,
        evaluator: Evaluator,
        guarantee: Guarantee,
        meter: UsageMeter,
        notifier: Notifier,
        budget: Budget,
        train_size: int,
        tallies: Tallies,
    ) -> None:
        self._tallies = tallies
        self._engine, self._cluster, self._evaluator, self._guarantee = engine, cluster, evaluator, guarantee
        self._meter, self._notifier, self._budget, self._train_size = meter, notifier, budget, train_size
        self._loss: float | None = None
        self._living: list[Any] | None = None
        self._workers: dict[str, str] = {}
        self.losses = 0.0, 0
        self.metrics: dict[str, float] = {}
        self.evaluated_at = self.recorded_at = self.collected_at = -1

    def evaluate(self) -> None:
        """Evaluate the global model.

        Raises
        ------
        ConfigurationError : a metric has the name of another column of the history.
        """
        used = self._meter.counters
        if (locate := getattr(self._evaluator.model, "locate", None)) is not None:
            epochs = math.ceil(used.samples / self._train_size)
            locate(Position(step=used.rounds, epoch=max(epochs - 1, 0)))  # in the epoch that has just ended
        self.metrics = {**self._evaluator.evaluate(), **self._guarantee.measures()}
        self.evaluated_at = used.rounds
        if taken := self.metrics.keys() & {"epoch", "round", "train_loss", "clients", *asdict(used)}:
            raise ConfigurationError(
                f"the metric {min(taken)!r} has the name of another column of the history: log it under another name"
            )

    def record(self, *, of_all: bool) -> None:
        """Report a row of counters, the mean loss since the last row, and the metrics if this round was evaluated."""
        self.collect_losses(of_all=of_all)
        total, count = self.losses
        self._loss, self.losses = (total / count if count else None), (0.0, 0)
        self._meter.count(between_rounds=True)
        used = self._meter.counters
        row: dict[str, Any] = {
            "round": used.rounds,
            "epoch": used.samples / self._train_size,
            **{key: value for key, value in asdict(used).items() if key != "rounds" and (value or key not in _TOKENS)},
        }
        if self._loss is not None:
            row["train_loss"] = self._loss
        if self.evaluated_at == used.rounds:
            row.update(self.metrics)
            row.update(self._guarantee.instead())
            if self._evaluator.of_clients:
                row["clients"] = self._evaluator.of_clients
        self.recorded_at = used.rounds
        self._notifier.measured(row, self.progress())

    def collect_losses(self, *, of_all: bool) -> None:
        """Add the losses of the workers that computed since the last call, or of all workers."""
        # Idle workers have no losses to report. Without the driver in rounds, the trace may list workers too late.
        if of_all:
            self._meter.worked.update(self._cluster.names)
            self.collected_at = self._meter.counters.rounds
        tallies = self._tallies.collect(self._meter.worked)
        self._meter.add(tallies)
        total, count = self.losses
        self.losses = total + sum(each.loss for each in tallies), count + sum(each.losses for each in tallies)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        at = {"evaluated_at": self.evaluated_at, "recorded_at": self.recorded_at}
        return {"metrics": self.metrics, "losses": self.losses, **at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.metrics, self.losses = state["metrics"], tuple(state["losses"])
        then = self._meter.counters.rounds  # older checkpoints have neither of the two
        self.evaluated_at, self.recorded_at = state.get("evaluated_at", then), state.get("recorded_at", then)

    def progress(self) -> Progress:
        """Return the progress of the run."""
        used = self._meter.counters
        workers = self._states()
        return Progress(
            rounds=used.rounds,
            epochs=used.samples / self._train_size,
            samples=used.samples,
            seconds=used.seconds,
            virtual_time=self._engine.virtual_time,
            tokens=used.tokens,
            flops=used.flops,
            peak_flops=self._meter.peak_flops(),
            bytes_up=used.bytes_up,
            bytes_down=used.bytes_down,
            loss=self._loss,
            metrics=self.metrics,
            fraction=self._budget.fraction(used, self._train_size),
            workers=workers,
            samples_by_worker=dict(self._meter.samples_by_worker),
            fill=self._cluster.queue_fill()
            | {name: own for name, own in self._meter.fill.items() if workers[name] == "running"},
        )

    def _states(self) -> dict[str, str]:
        """Return the state of each worker by name. There can be many workers, so the result is kept until a state changes."""
        living, count = self._cluster.workers, len(self._cluster.rank_of)
        if living is not self._living or count != len(self._workers):
            names = {worker.name for worker in living}
            self._workers = {name: "running" if name in names else "lost" for name in self._cluster.names}
            self._living = living
        return self._workers
