"""A strategy: the workers take turns (Nedic and Bertsekas 2001, "Incremental Subgradient Methods")."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from chimera.strategies.strategy import STRATEGIES, Round, Strategy


@STRATEGIES.register("my-project-strategy")
class Cyclic(Strategy):
    """Each round applies the gradient of one worker, in turn (Nedic and Bertsekas 2001, "Incremental Subgradient Methods").

    Parameters
    ----------
    skip : workers to skip after each turn; default 0.
    """

    family = "synchronous"

    def __init__(self, *, skip: int = 0) -> None:
        self._stride = skip + 1

    def rounds(self, cluster: Any) -> Iterator[Round]:
        """Yield one gradient a round."""
        (server,) = cluster.servers(1)
        weights = [server.weights()]
        for round_ in count(cluster.round):
            worker = cluster.workers[round_ * self._stride % len(cluster.workers)]
            (gradient,) = worker.gradient(*cluster.addressed(worker, weights), returns=1)
            updated, done = server.update(gradient, returns=2)
            weights = [updated]
            yield Round([done])

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - one worker computes
        """Return the number of batches computed in a round."""
        return 1
