"""How often a run is looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cadence:
    """How often the loop looks, in rounds.

    Attributes
    ----------
    log_every : for a row of metrics with the training loss.
    evaluate_every : for the test set.
    checkpoint_every : for a checkpoint.
    """

    log_every: int
    evaluate_every: int
    checkpoint_every: int

    def until_next(self, rounds: int) -> int:
        """Return how many rounds it is to the next look."""
        return min(every - rounds % every for every in (self.log_every, self.evaluate_every, self.checkpoint_every))
