"""Who takes part in a round (Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", section 2.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from chimera.core.errors import ConfigurationError

_AT_ONCE = 16
"""For so many rounds it is drawn at once who takes part."""


class Work(NamedTuple):
    """What one worker does in a round.

    Attributes
    ----------
    worker : who.
    steps : how many local steps.
    first : the number of the first of them, by which its batches are known.
    partial : whether that is less than what was asked for.
    """

    worker: Any
    steps: int
    first: int
    partial: bool = False


@dataclass(frozen=True)
class Participation:
    """A seeded choice for each round, which depends on nothing else.

    Attributes
    ----------
    fraction : the share of the workers whose results make a round; at least one.
    over_selection : how many times more are asked, at least 1; the first to answer count.
    deadline_s : how long a round waits for them, in the engine's seconds; by default for ever.
    stragglers : the share of those asked who get done with a part of their work only: a number of steps drawn evenly from 1 to
        all (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", section 5.2). One at least does all.
    seed : of the choices.

    Raises
    ------
    ConfigurationError : a value out of its range.
    """

    fraction: float = 1.0
    over_selection: float = 1.0
    deadline_s: float | None = None
    stragglers: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigurationError(f"fraction is a share of the workers, above 0 and at most 1, not {self.fraction}")
        if not 1 <= self.over_selection < math.inf:
            raise ConfigurationError(f"over_selection must be at least 1, not {self.over_selection}")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ConfigurationError(f"deadline_s must be above 0, not {self.deadline_s}")
        if not 0 <= self.stragglers <= 1:
            raise ConfigurationError(f"stragglers is a share of the workers, from 0 to 1, not {self.stragglers}")
        if self.seed < 0:
            raise ConfigurationError(f"the seed is {self.seed}: it must be 0 or more")

    @property
    def waits_for_all(self) -> bool:
        """Whether a round takes all that it asked for, so that after a death it is asked for again."""
        return self.over_selection == 1 and self.deadline_s is None

    def wanted(self, workers: int) -> int:
        """Return how many answers of so many workers make a round."""
        return max(round(self.fraction * workers), 1)

    def asked(self, workers: int) -> int:
        """Return how many are asked."""
        return min(math.ceil(self.wanted(workers) * self.over_selection - 1e-9), workers)

    def chosen(self, workers: Sequence[Any], round_: int) -> list[Any]:
        """Return who is asked in a round, in rank order."""
        count = self.asked(len(workers))
        if count == len(workers):
            return list(workers)
        block, which = divmod(round_, _AT_ONCE)
        return [workers[place] for place in _drawn(self.seed, block, len(workers), count)[which]]

    def cut_short(self, plan: Sequence[Work], round_: int) -> list[Work]:
        """Return the same work, that of the stragglers made partial."""
        late = min(round(self.stragglers * len(plan)), len(plan) - 1)
        if late == 0:
            return list(plan)
        rng = np.random.default_rng([self.seed, round_, *b"stragglers"])
        short = {int(place): float(rng.random()) for place in rng.choice(len(plan), late, replace=False)}
        return [
            work._replace(steps=1 + int(short[place] * work.steps), partial=True) if place in short else work
            for place, work in enumerate(plan)
        ]


@lru_cache(maxsize=8)
def _drawn(seed: int, block: int, workers: int, count: int) -> list[list[int]]:
    """Return the places of those who are asked in each round of a block, in rank order.

    A round at a time it would take ten times as long: all that a round trains has put it out of the processor's caches.
    """
    rounds = range(block * _AT_ONCE, (block + 1) * _AT_ONCE)
    drawn = [np.random.default_rng([seed, round_]).choice(workers, count, replace=False) for round_ in rounds]
    return [sorted(places.tolist()) for places in drawn]
