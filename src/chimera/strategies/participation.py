"""Choice of participants (Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", section 2.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from chimera.core.errors import ConfigurationError

_AT_ONCE = 16
"""Number of rounds for which participants are drawn at once."""


class Work(NamedTuple):
    """The task of one worker in a round.

    Attributes
    ----------
    worker : the participant.
    steps : number of local steps.
    first : number of the first local step, which identifies its batches.
    partial : whether the worker does fewer steps than the round asks for.
    """

    worker: Any
    steps: int
    first: int
    partial: bool = False


@dataclass(frozen=True)
class Participation:
    """A choice of participants for each round, determined by the seed, the round, and the clients that are connected.

    Attributes
    ----------
    fraction : share of the workers whose results make a round, above 0 and at most 1; default 1. At least one worker
        participates.
    over_selection : number of workers asked, divided by the number of results needed; at least 1 (default). The first answers
        count.
    deadline_s : seconds that a round waits for answers, on the engine's clock; default None, without a limit.
    stragglers : share of the asked workers that complete only a part of their work; default 0. The number of their steps is
        drawn uniformly from 1 to all (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", section 5.2). At
        least one worker does all its steps.
    seed : seed of the choices; default 0.

    Raises
    ------
    ConfigurationError : a value is out of its range.
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
        """Whether a round needs the answers of all workers asked; a round with a failed worker is then repeated."""
        return self.over_selection == 1 and self.deadline_s is None

    def wanted(self, workers: int) -> int:
        """Return the number of answers that make a round of ``workers`` workers."""
        return max(round(self.fraction * workers), 1)

    def asked(self, workers: int) -> int:
        """Return the number of workers asked."""
        return min(math.ceil(self.wanted(workers) * self.over_selection - 1e-9), workers)

    def count_of(self, workers: int, asked: int) -> int:
        """Return the number of answers to wait for, of ``workers`` workers of which ``asked`` were asked."""
        return min(self.wanted(workers), asked)

    def chosen(
        self,
        workers: Sequence[Any],
        round_: int,
        site: int = 0,
        connected: Callable[[Any], bool] | None = None,
    ) -> list[Any]:
        """Return the workers of a site that are asked in a round, in rank order.

        Parameters
        ----------
        site : number of the site; each site has its own draws.
        connected : whether a worker can be reached now; default: all can. Drawn workers that cannot be reached are replaced by
            others, also drawn by seed and round. If no worker can be reached, the drawn ones are returned.
        """
        count = self.asked(len(workers))
        places: Sequence[int] = range(len(workers))
        if count < len(workers):
            block, which = divmod(round_, _AT_ONCE)
            places = _drawn(self.seed, block, len(workers), count, site)[which]
        if connected is not None:
            places = self._reachable(places, workers, [round_, *([site] if site else [])], connected) or places
        return [workers[place] for place in places]

    def _reachable(
        self, drawn: Sequence[int], workers: Sequence[Any], key: Sequence[int], connected: Callable[[Any], bool]
    ) -> list[int]:
        """Return the drawn places of connected workers, in order; other places replace those of absent workers."""
        found = [place for place in drawn if connected(workers[place])]
        if len(found) < len(drawn) < len(workers):
            rng, known = np.random.default_rng([self.seed, *key, *b"absent"]), set(drawn)
            others = (place for place in rng.permutation(len(workers)).tolist() if place not in known)
            reachable = (place for place in others if connected(workers[place]))
            found = sorted([*found, *itertools.islice(reachable, len(drawn) - len(found))])
        return found

    def cut_short(self, plan: Sequence[Work], round_: int) -> list[Work]:
        """Return the same plan, with the work of stragglers made partial."""
        late = min(round(self.stragglers * len(plan)), len(plan) - 1)
        if late <= 0:
            return list(plan)
        rng = np.random.default_rng([self.seed, round_, *b"stragglers"])
        short = {int(place): float(rng.random()) for place in rng.choice(len(plan), late, replace=False)}
        return [
            work._replace(steps=1 + int(short[place] * work.steps), partial=True) if place in short else work
            for place, work in enumerate(plan)
        ]


@lru_cache(maxsize=8)
def _drawn(seed: int, block: int, workers: int, count: int, site: int) -> list[list[int]]:
    """Return the places of the workers asked in each round of a block, in rank order.

    Drawing one round at a time takes ten times as long: training evicts the code and data of the draw from the processor's
    caches.
    """
    rounds = range(block * _AT_ONCE, (block + 1) * _AT_ONCE)
    of_site = [site] if site else []
    drawn = [np.random.default_rng([seed, round_, *of_site]).choice(workers, count, replace=False) for round_ in rounds]
    return [sorted(places.tolist()) for places in drawn]
