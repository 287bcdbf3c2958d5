"""Intervals between evaluations, log rows, checkpoints and snapshots."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from chimera.training.progress.budget import Budget


@dataclass(frozen=True)
class Intervals:
    """Intervals in rounds.

    Attributes
    ----------
    log_every : between rows of metrics with the training loss.
    evaluate_every : between evaluations on the test set.
    checkpoint_every : between checkpoints.
    snapshot_every : between snapshots in memory; a checkpoint counts as one.
    """

    log_every: int
    evaluate_every: int
    checkpoint_every: int
    snapshot_every: int

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
        snapshot_every: int = 100,
    ) -> Intervals:
        """Return the intervals, with defaults: evaluate and checkpoint once an epoch, log a hundred times a run."""
        per_epoch = math.ceil(rounds_per_epoch)
        ends = [budget.rounds, None if budget.epochs is None else math.ceil(budget.epochs * per_epoch)]
        known = [end for end in ends if end is not None]
        # A row needs a call to each worker that computed since the last row: the more workers, the fewer rows.
        log = log_every or max(min(known, default=per_epoch) // 100, workers // 10, 1)
        evaluate = evaluate_every or per_epoch
        return cls(log, evaluate, checkpoint_every or evaluate, snapshot_every)

    def until_next(self, rounds: int) -> int:
        """Return the number of rounds until the next of these is due."""
        every: tuple[int, ...] = astuple(self)
        return min(step - rounds % step for step in every)
