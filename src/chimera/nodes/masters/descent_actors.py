"""The workers and the server of one fit, as the training cluster needs them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Layout
from chimera.data.provider import DataProvider
from chimera.engines.http import HttpEngine
from chimera.nodes.masters.gradient_server import GradientServer
from chimera.nodes.masters.learning_rate import LearningRate
from chimera.training.cluster.actors import Actors


class DescentActors(Actors):
    """The existing workers and the server of the cluster; see `Actors`."""

    addressed = by_rows = False

    def __init__(
        self,
        engine: HttpEngine,
        workers: Sequence[Any],
        layout: Layout,
        first: NDArray[Any],
        rate: LearningRate,
        epsilon: float,
    ) -> None:
        self._engine, self.workers, self._layout = engine, workers, layout
        self._first, self._rate, self._epsilon = first, rate, epsilon

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`; the workers exist already."""
        self._engine.reserve([Resources()] * count, timeout_s)

    def worker(self, rank: int, _: Any) -> Any:
        """Return the worker of a rank."""
        return self.workers[rank]

    def servers(self, shards: int) -> list[Any]:
        """Start all servers."""
        return [self.server(index, shards) for index in range(shards)]

    def server(self, index: int, shards: int) -> Any:
        """Start the one server, with the initial parameters."""
        if (index, shards) != (0, 1):
            raise ConfigurationError(f"a master has one server: there is no server {index} of {shards}")
        options: dict[str, Any] = {"rate": self._rate, "epsilon": self._epsilon}
        return self._engine.spawn(GradientServer, self._first, self._layout, name="server 0", **options)


class NoProvider(DataProvider):
    """A provider without data: workers read their own data."""

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[Any]:  # noqa: ARG002
        """Return no order for each worker."""
        return list(itertools.repeat(None, world_size))
