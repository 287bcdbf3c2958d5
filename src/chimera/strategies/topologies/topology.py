"""The protocol of topologies, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import combinations
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.strategies.topologies.mixing import Mixing, connected, gap_of, metropolis

_DRAWS = 256  # rounds that represent a topology that never repeats
_DENSE, _DRAWN = 2048, 256  # largest numbers of workers for a spectral gap


class Topology(ABC):
    """The neighbours of each worker and their weights. A random topology is the same for the same round on any engine."""

    @abstractmethod
    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:
        """Return the weights of a round among the living workers of these ranks, by their places in ``ranks``."""

    def period(self, size: int) -> int:  # noqa: ARG002 - most never change
        """Return the number of rounds after which the topology repeats among ``size`` workers; 0 if it never does."""
        return 1

    def check(self, size: int) -> None:
        """Raise ConfigurationError unless the topology is for ``size`` workers, and connects them."""
        self.fits(size)
        if not self._connects(range(size)):
            raise ConfigurationError(f"the topology does not connect {size} workers: some never hear of the others")

    def fits(self, size: int) -> None:  # noqa: B027 - most are for any number
        """Raise ConfigurationError unless the topology is for ``size`` workers, connected or not."""

    def among(self, ranks: Sequence[int]) -> Callable[[int], Mixing]:
        """Return a function from a round to its weights among the living workers; complete, if losses disconnect them."""
        if not self._connects(ranks):
            whole = complete(len(ranks))
            return lambda _: whole
        period = self.period(len(ranks))
        if period == 0:
            return partial(self.mixing, ranks)
        known = cache(partial(self.mixing, ranks))
        return lambda round_: known(round_ % period)

    def spectral_gap(self, size: int) -> float | None:
        """Return 1 - |lambda_2| of W.

        For a periodic topology, W is the product over a period. For a topology that is drawn each round, W is the mean,
        estimated from 256 rounds. The result is None if there are too many workers for a dense matrix or for these draws.
        """
        ranks, period = range(size), self.period(size)
        if size > (_DENSE if period else _DRAWN):
            return None
        if period == 0:
            mean = np.zeros((size, size))
            for t in range(_DRAWS):
                mean += self.mixing(ranks, t).matrix() / _DRAWS
            return gap_of(mean)
        product = np.eye(size)
        for t in range(period):
            product = self.mixing(ranks, t).matrix() @ product
        return gap_of(product)

    def _connects(self, ranks: Sequence[int]) -> bool:
        return connected([self.mixing(ranks, t) for t in range(self.period(len(ranks)) or _DRAWS)])


@lru_cache(maxsize=4)
def complete(size: int) -> Mixing:
    """Return the weights by which all workers take the mean of all."""
    return metropolis(size, combinations(range(size), 2))


def topology_of(given: Any) -> Topology:
    """Create a topology from a name, a table with ``name`` and options, a networkx graph, or a list of any of these.

    Raises
    ------
    ConfigurationError : ``given`` is none of these.
    """
    from chimera.strategies.topologies.graph import Graph
    from chimera.strategies.topologies.time_varying import TimeVarying

    if isinstance(given, Topology):
        return given
    if isinstance(given, str):
        return TOPOLOGIES.create(given)
    if isinstance(given, Mapping):
        options = dict(given)
        if not isinstance(name := options.pop("name", None), str):
            raise ConfigurationError(f"the topology {dict(given)!r} needs a 'name'")
        return TOPOLOGIES.create(name, options)
    if isinstance(given, Sequence):
        return TimeVarying(topologies=given)
    if callable(getattr(given, "is_directed", None)):
        return Graph(given)
    text = repr(given).partition("\n")[0]
    raise ConfigurationError(f"the topology {text} is no name, table, graph of networkx, or list of these")


TOPOLOGIES: Registry[Topology] = Registry("topology", "chimera.strategies.topologies", Topology, family="topologies")
