"""AD-PSGD (Lian et al. 2018, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.decentralised import Decentralised
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("ad-psgd")
class ADPSGD(Decentralised):
    """Asynchronous, without a server: after each gradient step a worker averages with a random neighbour (Lian et al. 2018).

    A round is one applied gradient. A neighbour answers when it has computed its own gradient. The worker that asked continues
    meanwhile, and moves halfway when the answer arrives. Both move by opposite amounts, so that the mean of all copies is kept.

    Parameters
    ----------
    topology : the topology in which the neighbour is drawn; default ``ring``.
    seed : seed of the draws; default 0.
    """

    def __init__(self, *, topology: Any = "ring", seed: int = 0) -> None:
        super().__init__(topology=topology)
        if seed < 0:
            raise ConfigurationError(f"seed must be at least 0, not {seed}")
        self.seed = seed
        self._begun: dict[
            str, tuple[Any, Any, Any, Any]
        ] = {}  # by name of the asking worker: that worker, its neighbour, both models

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one gradient a round."""
        self._finish()
        workers, mixing = cluster.workers, self.among(cluster)
        places = {worker.name: place for place, worker in enumerate(workers)}
        pending = {worker.name: worker.compute() for worker in workers}
        for round_ in count(cluster.round):
            name = cluster.first(pending)
            worker, neighbours = workers[places[name]], mixing(round_).rows[places[name]][1:]
            self._finish(worker)
            own, done = worker.step_computed(pending[name], returns=2)
            pending[name] = worker.compute()
            if neighbours and name not in self._begun:
                drawn = int(np.random.default_rng([self.seed, round_]).integers(len(neighbours)))
                neighbour = workers[neighbours[drawn][0]]
                theirs = neighbour.message()
                neighbour.approach(theirs, own)
                self._begun[name] = worker, neighbour, own, theirs
            yield Round([done])

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return the mean of all copies, after all open exchanges are complete."""
        self._finish()
        return super().model(cluster)

    def _finish(self, answered: Any = None) -> None:
        """Complete the exchanges with the worker ``answered``, which has answered; by default all exchanges."""
        for name, (worker, neighbour, *models) in list(self._begun.items()):
            if answered is None or neighbour is answered:
                worker.approach(*models)
                del self._begun[name]

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - whatever their number
        """Return 1."""
        return 1
