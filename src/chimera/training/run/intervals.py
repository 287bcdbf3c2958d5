"""How often a run is looked at."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from chimera.training.progress.budget import Budget


@dataclass(frozen=True)
class Cadence:
    """How often the loop looks, in rounds.

    Attributes
    ----------
    log_every : for a row of metrics with the training loss.
    evaluate_every : for the test set.
    checkpoint_every : for a checkpoint.
    snapshot_every : for a snapshot in memory; a checkpoint is one too.
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
    ) -> Cadence:
        """Fill in what was not chosen: evaluate each epoch, checkpoint as often, and log a hundred times a run."""
        per_epoch = math.ceil(rounds_per_epoch)
        ends = [budget.rounds, None if budget.epochs is None else math.ceil(budget.epochs * per_epoch)]
        known = [end for end in ends if end is not None]
        # A row asks for the losses of all who worked since the last: the more workers, the fewer rows.
        log = log_every or max(min(known, default=per_epoch) // 100, workers // 10, 1)
        evaluate = evaluate_every or per_epoch
        return cls(log, evaluate, checkpoint_every or evaluate, snapshot_every)

    def until_next(self, rounds: int) -> int:
        """Return how many rounds it is to the next look."""
        every: tuple[int, ...] = astuple(self)
        return min(step - rounds % step for step in every)
