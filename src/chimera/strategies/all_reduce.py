"""Data parallelism by all-reduce (Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from chimera.strategies.strategy import STRATEGIES, Cluster, Family, Round, Strategy


@STRATEGIES.register("all-reduce")
class AllReduce(Strategy):
    """No server: workers average their gradients among themselves, and each steps its own copy of the model.

    All copies stay identical bit for bit. One call runs as many steps as the trainer wants before its next look. A codec that
    has a form for it (`powersgd`) shortens what is reduced.
    """

    family: ClassVar[Family] = "synchronous"
    sends: ClassVar[Literal["collectives", "peers", "nothing"]] = "collectives"

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield several steps at a time."""
        yield from self.level(cluster)
        workers, group = cluster.workers, cluster.group()
        while True:
            count = cluster.horizon
            yield Round([worker.train(count, group) for worker in workers], count)

    def level(self, cluster: Cluster) -> Iterator[Round]:
        """Bring all copies to the step of the furthest, and yield what that is more than the run knows of."""
        workers = cluster.workers
        steps = cluster.get([worker.step() for worker in workers])
        first = steps.index(max(steps))
        if min(steps) < steps[first]:  # a loss cut a step short: some have taken it and some have not
            state = workers[first].state()
            cluster.get([worker.restore(state) for i, worker in enumerate(workers) if i != first])
        if steps[first] > cluster.round:
            yield Round([], steps[first] - cluster.round)
