"""Rejected gradients: gradients that are not finite are left out, reported, and end the run if no others are left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from chimera.core.device import namespace
from chimera.core.errors import NonFiniteError
from chimera.core.parameters import Flat, all_finite

ADVICE = "the run has diverged; try a smaller learning rate, or check the data"
_IN_A_ROW = 16  # consecutive updates without a gradient, per worker, after which the run has diverged


class Rejected(msgspec.Struct, frozen=True):
    """A gradient that was rejected because it is NaN or infinite. A worker sends this in place of the gradient.

    Attributes
    ----------
    rank : rank of the worker; None if it is not known.
    step : step of the worker; of the server if the rank is not known.
    why : the reason, in one line.
    """

    rank: int | None
    step: int
    why: str

    @property
    def actor(self) -> str:
        """The worker's name; empty if it is not known."""
        return "" if self.rank is None else f"worker {self.rank}"

    @property
    def detail(self) -> str:
        """The step and the reason."""
        return f"step {self.step}: {self.why}"

    def __str__(self) -> str:
        return self.detail if self.rank is None else f"rank {self.rank}, {self.detail}"


class Applied(msgspec.Struct, frozen=True):
    """The outcome of one update: the small value that a round returns to the driver.

    Attributes
    ----------
    step : steps that the actor has taken.
    gradients : number of gradients in this update.
    rejected : gradients that were left out.
    mechanism : in a private run, the noise multiplier of the sum, and the share of all workers that were asked for an update;
        None without noise.
    """

    step: int
    gradients: int
    rejected: tuple[Rejected, ...] = ()
    mechanism: tuple[float, float] | None = None


class Served(msgspec.Struct, frozen=True):
    """The outcome of several rounds in one call of a server.

    Attributes
    ----------
    rejecting : the outcome of each round in which a gradient was left out, by the number of rounds before it.
    staleness : for each gradient, the number of updates between reading its weights and applying it; empty if none is stale.
    """

    rejecting: dict[int, Applied]
    staleness: tuple[int, ...] = ()


def fault(vector: Flat, what: str) -> str:
    """Return in one line why a vector, shape (n,), is rejected; an empty string if all of it is finite."""
    if all_finite(vector):
        return ""
    xp = namespace(vector)
    bad = len(vector) - int(xp.count_nonzero(xp.isfinite(vector)))
    return f"{bad} of {len(vector)} values of {what} are NaN or infinite"


def fault_of_gradient(gradient: Flat | None, loss: float) -> str:
    """Return in one line why a gradient or its loss is rejected; empty if both are finite. None: only the loss."""
    if math.isfinite(loss):
        return "" if gradient is None else fault(gradient, "the gradient")
    return f"the loss is {loss}"


class Rejections:
    """Collects the rejected gradients of a run, round by round.

    Attributes
    ----------
    count : number of rejected gradients.
    applied : whether an update had a gradient.
    """

    def __init__(self) -> None:
        self._in_a_row, self._last_round = 0, -1
        self._first: Rejected | str | None = None
        self.count, self.applied = 0, False

    def state(self) -> dict[str, Any]:
        """Return what `check` needs, for a checkpoint."""
        return {"count": self.count, "applied": self.applied, "first": str(self._first or "")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.count, self.applied, self._first = state["count"], state["applied"], state["first"] or None

    def check(self) -> None:
        """Raise `NonFiniteError` if gradients were rejected and none was applied: the run has not trained."""
        if self._first is not None and not self.applied:
            were = "1 was" if self.count == 1 else f"{self.count} were"
            raise NonFiniteError(f"no gradient was applied, and {were} rejected, the first: {self._first}: {ADVICE}")

    def of(self, values: Sequence[Any], workers: Sequence[Any], rounds: int = 1) -> Iterator[Rejected]:
        """Yield each rejected gradient once, whatever the number of shards.

        Parameters
        ----------
        values : values of `Round.done`; only those of type `Applied` or `Served` are read.
        workers : the living workers.
        rounds : number of rounds of these values.

        Raises
        ------
        NonFiniteError : the gradients of all workers were rejected, or no update had a gradient many times in a row.
        """
        served = [value.rejecting for value in values if isinstance(value, Served)]
        if not served:
            yield from self._of_round([value for value in values if isinstance(value, Applied)], workers)
            return
        self.applied = self.applied or any(len(rejecting) < rounds for rejecting in served)
        for number in sorted({number for rejecting in served for number in rejecting}):
            everywhere = all(number in rejecting for rejecting in served)
            if number != self._last_round + 1:
                self._in_a_row = 0
            self._last_round = number
            yield from self._of_round([found for each in served if (found := each.get(number))], workers, everywhere)

    def _of_round(
        self, applied: Sequence[Applied], workers: Sequence[Any], everywhere: bool = True
    ) -> Iterator[Rejected]:
        """Yield the rejections of one round; ``everywhere`` if no other shard stepped with all gradients."""
        rejected = list(dict.fromkeys(each for value in applied for each in value.rejected))
        self.applied = self.applied or any(value.gradients for value in applied)
        self.count += len(rejected)
        self._first = self._first or next(iter(rejected), None)
        yield from rejected
        if not rejected or not everywhere or any(value.gradients for value in applied):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        all_workers = {worker.name for worker in workers} <= {each.actor for each in rejected}
        if all_workers or self._in_a_row >= _IN_A_ROW * len(workers):
            rounds = "" if self._in_a_row == 1 else f", the last of {self._in_a_row} rounds in a row"
            raise NonFiniteError(f"{rejected[0]}, and there is no other gradient{rounds}: {ADVICE}")
