"""The last result of a worker, sent again if a round is repeated after a loss, so that no work is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from chimera.core.message import Encoded
from chimera.models.shared_model import SharedModel


class Result(NamedTuple):
    """A result, and what another result of the same local steps needs.

    Attributes
    ----------
    round_ : index of the round; None: no caller will request the result again.
    asked : the request, without the factors of the change.
    factors : factors of the change in the messages.
    beside : messages that follow the change and have no factors.
    messages : the result.
    change : the change without factors; None if a call that repeats the round has the same factors.
    codecs : states of the codecs before the messages, if ``change`` is given.
    """

    round_: int | None
    asked: Any
    factors: Any
    beside: Sequence[Encoded]
    messages: list[Encoded] = []  # noqa: RUF012 - never changed
    change: Any = None
    codecs: Sequence[Mapping[str, Any]] = ()


class LastResult:
    """The last result of one worker.

    Workers that share one model object also share the storage of results, which is cleared when one of them starts another
    round. So results take no more memory than one round, or twice as much if the change is kept too.

    Parameters
    ----------
    rank : rank of the worker.
    model : its model.
    """

    __slots__ = ("_rank", "_rounds")

    def __init__(self, rank: int, model: Any) -> None:
        self._rank = rank
        self._rounds: dict[int, dict[int, Result]] = model.common if isinstance(model, SharedModel) else {}

    def to(self, round_: int | None, asked: Any) -> Result | None:
        """Return the result of the same local steps in this round, or None; discard the results of other rounds."""
        if round_ is None or round_ not in self._rounds:
            self._rounds.clear()
            return None
        result = self._rounds[round_].get(self._rank)
        return result if result is not None and result.asked == asked else None

    def keep(self, result: Result) -> None:
        """Keep a result."""
        if result.round_ is not None:
            self._rounds.setdefault(result.round_, {})[self._rank] = result

    def forget(self) -> None:
        """Discard the results: the run returned to a snapshot and repeats this round from other weights."""
        self._rounds.clear()


def times(change: Any, weight: float | None, factors: Any) -> Any:
    """Return a change times these factors, in a new vector unless all are 1."""
    if weight in (None, 1) and factors is None:
        return change
    sent = change * np.float32(1 if weight is None else weight)
    if factors is not None:
        sent *= factors
    return sent


def copies_of(states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of states of codecs, which the next message changes."""
    return [{name: np.array(value) for name, value in state.items()} for state in states]
