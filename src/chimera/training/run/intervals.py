"""Intervals between evaluations, log rows, checkpoints and snapshots."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chimera.training.progress.budget import Budget

_SNAPSHOT_ROUNDS, _SNAPSHOT_S = 100, 1.0
"""Rounds and seconds between snapshots by default. A snapshot waits for all calls of a round, so the time counts, too."""


@dataclass(frozen=True)
class Intervals:
    """Intervals in rounds, and one in seconds.

    Attributes
    ----------
    log_every : rounds between rows of metrics with the training loss.
    evaluate_every : rounds between evaluations on the test set.
    checkpoint_every : rounds between checkpoints; None if only their time counts.
    snapshot_every : rounds between snapshots in memory; a checkpoint counts as a snapshot. None: a snapshot is due after 100
        rounds, but not within a second of the last one.
    checkpoint_seconds : seconds of the engine's clock between checkpoints; None if only rounds count.
    """

    log_every: int
    evaluate_every: int
    checkpoint_every: int | None
    snapshot_every: int | None
    checkpoint_seconds: float | None = None

    @classmethod
    def of(
        cls,
        budget: Budget,
        rounds_per_epoch: float,
        workers: int,
        *,
        log_every: int | None = None,
        evaluate_every: int | None = None,
        checkpoint_every: int | None = None,
        checkpoint_seconds: float | None = None,
        snapshot_every: int | None = None,
        virtual_time: bool = True,
    ) -> Intervals:
        """Return the intervals, with defaults: evaluate and checkpoint once an epoch, log a hundred times a run.

        With ``checkpoint_seconds``, the number of rounds between checkpoints is not set by default. In virtual time a snapshot
        is due every 100 rounds, so that the run does not depend on the speed of the machine.
        """
        per_epoch = math.ceil(rounds_per_epoch)
        ends = [budget.rounds, None if budget.epochs is None else math.ceil(budget.epochs * per_epoch)]
        known = [end for end in ends if end is not None]
        # A row needs a call to each worker that computed since the last row: the more workers, the fewer rows.
        log = log_every or max(min(known, default=per_epoch) // 100, workers // 10, 1)
        evaluate = evaluate_every or per_epoch
        checkpoint = checkpoint_every or (evaluate if checkpoint_seconds is None else None)
        snapshot = snapshot_every or (_SNAPSHOT_ROUNDS if virtual_time else None)
        return cls(log, evaluate, checkpoint, snapshot, checkpoint_seconds)

    def until_next(self, rounds: int) -> int:
        """Return the number of rounds until the next of these is due."""
        every = self.log_every, self.evaluate_every, self.checkpoint_every, self.snapshot_every
        return min(step - rounds % step for step in every if step is not None)

    def checkpoint_due(self, rounds: int) -> bool:
        """Return whether a checkpoint is due after this number of rounds."""
        return self.checkpoint_every is not None and rounds % self.checkpoint_every == 0

    def snapshot_overdue(self, rounds: int, seconds: float) -> bool:
        """Return whether a snapshot is due by default, this number of rounds and seconds after the last one."""
        return rounds >= _SNAPSHOT_ROUNDS and seconds >= _SNAPSHOT_S

    def checkpoint_overdue(self, seconds: float) -> bool:
        """Return whether a checkpoint is due when this number of seconds has passed since the last one."""
        return self.checkpoint_seconds is not None and seconds >= self.checkpoint_seconds
