"""The last result of a worker, returned again if a round is repeated after a loss, so that no work is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chimera.core.message import Encoded
from chimera.models.shared_model import SharedModel


class LastResult:
    """The last result of one worker.

    Workers that share one model object also share the storage of results, which is cleared when one of them starts another
    round. So results take no more memory than one round.

    Parameters
    ----------
    rank : rank of the worker.
    model : its model.
    """

    __slots__ = ("_rank", "_rounds")

    def __init__(self, rank: int, model: Any) -> None:
        self._rank = rank
        self._rounds: dict[int, dict[int, Any]] = model.common if isinstance(model, SharedModel) else {}

    def to(self, round_: int | None, asked: Any) -> list[Encoded] | None:
        """Return the result of the same request in this round, or None; discard the results of other rounds."""
        if round_ not in self._rounds:
            self._rounds.clear()
            return None
        before, answer = self._rounds[round_].get(self._rank, (None, None))
        return answer if before == asked else None

    def keep(self, round_: int | None, asked: Any, answer: Sequence[Encoded]) -> None:
        """Keep a result. Without the index of a round, it is not kept: no caller will request it again."""
        if round_ is not None:
            self._rounds.setdefault(round_, {})[self._rank] = asked, answer

    def forget(self) -> None:
        """Discard the results: the run returned to a snapshot and repeats this round from other weights."""
        self._rounds.clear()
