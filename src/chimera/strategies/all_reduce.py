"""Data parallelism by all-reduce (Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Family, Round, Strategy


@STRATEGIES.register("all-reduce")
class AllReduce(Strategy):
    """Synchronous SGD without a server: an all-reduce averages the workers' gradients, and each worker steps its own copy.

    All copies stay identical, bit for bit. One call runs all steps up to the next evaluation. A codec with an all-reduce form,
    such as `powersgd`, shortens the vectors that the all-reduce sends.
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
        """Bring all copies to the newest step; yield the steps that the run has not counted yet."""
        workers = cluster.workers
        steps = cluster.get([worker.step() for worker in workers])
        first = steps.index(max(steps))
        if min(steps) < steps[first]:  # a loss interrupted a step: only some workers have taken it
            state = workers[first].state()
            cluster.get([worker.restore(state) for i, worker in enumerate(workers) if i != first])
        if steps[first] > cluster.round:
            yield Round([], steps[first] - cluster.round)
