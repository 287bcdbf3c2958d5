"""Local steps of several clients of one process at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.core.parameters import Flat, all_finite
from chimera.data.dataset import Dataset
from chimera.strategies.cluster import Announced


class LocalResult(NamedTuple):
    """The result of a client's local steps: its weights, shape (P,), and the mean loss of each batch."""

    weights: Flat
    losses: Sequence[float]


class _Request(NamedTuple):
    """The local steps that clients can take together, and the rate of each."""

    work: Announced
    rates: tuple[float, ...]


class SideBySide:
    """Computes the local steps of all announced clients when the first of them needs its own.

    Clients that take other steps, or start at other weights, compute their steps themselves.

    Parameters
    ----------
    batched : takes a step with many copies of the model, see `chimera.models.batched_steps.BatchedSteps`.
    dataset : the rows of all clients.
    orders : the order in which each client reads its rows, by rank.

    """

    def __init__(self, batched: Any, dataset: Dataset, orders: Mapping[int, Any]) -> None:
        self._batched, self._dataset, self._orders = batched, dataset, orders
        self.announce({})

    def announce(self, work: Mapping[int, Announced]) -> None:
        """Set the steps of each client in the next calls, by rank."""
        self._work = work
        self._begins: dict[int, Flat] = {}  # the weights at which the first client of each site starts
        self._taken: set[_Request] = set()
        self._results: dict[int, LocalResult] = {}

    def steps_of(self, rank: int, first: int, rates: Sequence[float], begin: Flat) -> LocalResult | None:
        """Return the result of the steps of a client, with these rates, from the weights ``begin``; None if it is not known.

        The result is returned once. A result that is not finite is not returned.
        """
        announced = self._work.get(rank)
        if announced is None or announced[:2] != (len(rates), first):
            return None
        request = _Request(announced, tuple(rates))
        site = announced.site
        if site not in self._begins:
            self._begins[site] = begin.copy()
        elif not np.array_equal(begin, self._begins[site]):
            return None
        if request not in self._taken:
            self._taken.add(request)
            self._take(request, self._begins[site])
        return self._results.pop(rank, None)

    def _take(self, request: _Request, begin: Flat) -> None:
        """Compute the steps of all announced clients with the same steps."""
        ranks = [rank for rank, work in self._work.items() if work == request.work]
        for start in range(0, len(ranks), self._batched.copies):
            together = ranks[start : start + self._batched.copies]
            if len(together) > 1:
                self._take_together(together, request, begin)

    def _take_together(self, ranks: Sequence[int], request: _Request, begin: Flat) -> None:
        copies = np.repeat(begin[np.newaxis], len(ranks), axis=0)
        numbered = enumerate(request.rates, request.work.first)
        try:
            losses = [self._batched.step(copies, *self._batches(ranks, number), rate) for number, rate in numbered]
        except (IndexError, RuntimeError):
            return  # the same step of a client alone raises an error that describes the mistake in its batch
        for place, rank in enumerate(ranks):
            own = [float(of_step[place]) for of_step in losses]
            if np.isfinite(own).all() and all_finite(copies[place]):
                self._results[rank] = LocalResult(copies[place], own)

    def _batches(self, ranks: Sequence[int], step: int) -> Batch:
        rows: NDArray[Any] = np.stack([self._orders[rank].batch(step) for rank in ranks])
        return tuple(array.reshape(*rows.shape, *array.shape[1:]) for array in self._dataset.take(rows.ravel()))
