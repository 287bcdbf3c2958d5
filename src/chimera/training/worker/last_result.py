"""What a worker answered last: asked the same again, because a death cut the round short, it need not do the work again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core.message import Encoded
from chimera.models.shared import SharedModel


class LastResult:
    """One worker's.

    Those that use one model object in turn keep theirs in one place, where all go as soon as somebody is asked for another
    round: so they take no more memory than a round under way does.

    Parameters
    ----------
    rank : its number.
    model : its model.
    """

    __slots__ = ("_rank", "_rounds")

    def __init__(self, rank: int, model: Any) -> None:
        self._rank = rank
        self._rounds: dict[int, dict[int, Any]] = model.common if isinstance(model, SharedModel) else {}

    def to(self, round_: int | None, asked: Any) -> list[Encoded] | None:
        """Return what it answered to the same in this round, if it did; else what was kept of other rounds goes."""
        if round_ not in self._rounds:
            self._rounds.clear()
            return None
        before, answer = self._rounds[round_].get(self._rank, (None, None))
        return answer if before == asked else None

    def keep(self, round_: int | None, asked: Any, answer: Sequence[Encoded]) -> None:
        """Keep an answer; without a number of the round nobody will ask for it again."""
        if round_ is not None:
            self._rounds.setdefault(round_, {})[self._rank] = asked, answer

    def forget(self) -> None:
        """Forget it: the run has gone back, and comes to this round from other weights."""
        self._rounds.clear()
