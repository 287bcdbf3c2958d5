"""The rounds that are issued and not counted yet."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from chimera.strategies.strategy import Round
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import Watch

AHEAD = 16
"""How many rounds the driver issues before their results are there."""

_AT_ONCE = 2
"""For so many of them it does its part at once, where it knows when that disturbs least."""


class Window:
    """Issues rounds ahead of their results, so that the driver is off the hot path.

    Parameters
    ----------
    cluster : is told how many rounds are still wanted, before each.
    watch : waits for them.

    Attributes
    ----------
    issued : how many rounds were issued so far.
    """

    def __init__(self, cluster: TrainingCluster, watch: Watch) -> None:
        self._cluster, self._watch, self.issued = cluster, watch, 0
        self._open: deque[Round] = deque()
        # When to wake, for each; what is not waited for is not held either.
        self._moments: deque[Sequence[Any]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def fill(self, rounds: Iterator[Round], horizon: int) -> None:
        """Issue rounds as long as there is room, until ``horizon`` are issued since the beginning.

        Raises
        ------
        ActorLost : somebody died; what was issued before has happened all the same.
        """
        while self.issued < horizon and len(self._open) < AHEAD:
            self._cluster.horizon = horizon - self.issued
            made = next(rounds)
            self.issued += made.rounds
            self._moments.append(made.computed if len(self._open) % _AT_ONCE == 0 else ())
            self._open.append(replace(made, computed=()) if made.computed else made)

    def await_some(self) -> int:
        """Wait until rounds are over for which it is worth to wake, and return how many rounds that are.

        Where cores are few, the driver keeps workers from theirs while it issues and counts. So it wakes when they have just
        handed over what they computed, and servers are at work; or, where nobody says when that is, seldom: once half of
        a full window is over, or all of a smaller one.
        """
        count = min(AHEAD // 2, len(self._open))
        if len(self._open) > _AT_ONCE and (computed := self._moments[_AT_ONCE]):
            self._moments[_AT_ONCE] = ()
            self._watch.wait(computed, len(computed))
            count = _AT_ONCE
        last = self._open[count - 1]
        self._watch.wait(last.done, len(last.done))
        return count

    def over(self, count: int) -> Iterator[tuple[Round, list[Any]]]:
        """Yield the first ``count`` rounds, each when it is over, with the values of its ``done``."""
        rounds = [self._open.popleft() for _ in range(count)]
        for _ in rounds:
            self._moments.popleft()
        refs = [ref for over in rounds for ref in over.done]
        values: Iterator[Any] | None = None
        with contextlib.suppress(Exception):  # it is raised again below, once the rounds before it are counted
            values = iter(self._watch.get(refs))  # at once: some engines charge by the question
        for over in rounds:
            yield over, self._watch.get(over.done) if values is None else [next(values) for _ in over.done]
