"""Gradients that are not finite: who sent them, what was done without them, and when that means the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from chimera.core.device import namespace
from chimera.core.errors import NonFiniteError
from chimera.core.parameters import Flat, all_finite

ADVICE = "the run has diverged; try a smaller learning rate, or look for a fault in the data"
_IN_A_ROW = 16  # updates without a gradient, times the number of workers, where each update has one of them


class Rejected(msgspec.Struct, frozen=True):
    """What a worker sends, or notes, instead of a gradient that is NaN or infinite.

    Attributes
    ----------
    rank : the worker's; None if whoever found out does not know.
    step : of the worker, or of the server where the rank is not known.
    why : one line.
    """

    rank: int | None
    step: int
    why: str

    @property
    def actor(self) -> str:
        """The worker's name, or nothing."""
        return "" if self.rank is None else f"worker {self.rank}"

    @property
    def detail(self) -> str:
        """The step, and why."""
        return f"step {self.step}: {self.why}"

    def __str__(self) -> str:
        return self.detail if self.rank is None else f"rank {self.rank}, {self.detail}"


class Applied(msgspec.Struct, frozen=True):
    """What became of the gradients of one call: the small value of a round.

    Attributes
    ----------
    step : how many steps the actor has taken.
    gradients : how many gradients this call stepped with.
    rejected : those that were left out.
    mechanism : of a private run, the noise multiplier of the sum that it stepped with, and the share of all workers that were
        asked for an update; None where there was no noise.
    """

    step: int
    gradients: int
    rejected: tuple[Rejected, ...] = ()
    mechanism: tuple[float, float] | None = None


def fault(vector: Flat, what: str) -> str:
    """Return in one line what is wrong with a vector, shape (n,); nothing if all of it is finite."""
    if all_finite(vector):
        return ""
    xp = namespace(vector)
    bad = len(vector) - int(xp.count_nonzero(xp.isfinite(vector)))
    return f"{bad} of {len(vector)} values of {what} are NaN or infinite"


def fault_of_gradient(gradient: Flat, loss: float) -> str:
    """Return in one line what is wrong with a gradient or its loss; nothing if both are finite."""
    if math.isfinite(loss):
        return "" if all_finite(gradient) else fault(gradient, "the gradient")
    return f"the loss is {loss}"


class Rejections:
    """Follows the rejected gradients of a run, round by round."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def of(self, told: Sequence[Any], workers: Sequence[Any]) -> Iterator[Rejected]:
        """Yield each gradient that was rejected in a round once, whatever the number of shards.

        Parameters
        ----------
        told : the values of `Round.done`; what is not `Applied` says nothing here.
        workers : the living ones.

        Raises
        ------
        NonFiniteError : none was left, of all workers or often in a row.
        """
        applied = [value for value in told if isinstance(value, Applied)]
        rejected = list(dict.fromkeys(each for value in applied for each in value.rejected))
        yield from rejected
        if not rejected or any(value.gradients for value in applied):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        all_workers = {worker.name for worker in workers} <= {each.actor for each in rejected}
        if all_workers or self._in_a_row >= _IN_A_ROW * len(workers):
            rounds = "" if self._in_a_row == 1 else f", the last of {self._in_a_row} rounds in a row"
            raise NonFiniteError(f"{rejected[0]}, and there is no other gradient{rounds}: {ADVICE}")
