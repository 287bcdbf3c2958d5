"""All-reduce in a ring, by hand (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce Algorithms ...", section 4)."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.strategies.all_reduce import AllReduce
from chimera.strategies.strategy import STRATEGIES, Cluster, Round


@STRATEGIES.register("ring-all-reduce")
class RingAllReduce(AllReduce):
    """`all-reduce` made of messages in a ring, to be looked at: each sends 2(n-1)/n of a vector (Patarasuk and Yuan 2009).

    The gradient is cut into n chunks. In n-1 steps of the reduce-scatter each passes one on, to which the next adds its own; in
    n-1 steps of the all-gather the finished ones go around. Chunks are float32, whatever the codec would do.
    """

    sends = "nothing"
    worker_extensions = ("chunked-sum",)

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        yield from self.level(cluster)
        workers = cluster.workers
        n = len(workers)
        while True:
            chunks = [worker.contribute(n, i) for i, worker in enumerate(workers)]
            for step in range(1, n):  # reduce-scatter
                chunks = [worker.add((i - step) % n, chunks[i - 1]) for i, worker in enumerate(workers)]
            for step in range(n - 2):  # all-gather, but for its last step
                chunks = [worker.take((i - step) % n, chunks[i - 1]) for i, worker in enumerate(workers)]
            last = [((i + 2) % n, chunks[i - 1]) if n > 1 else () for i in range(n)]
            yield Round([worker.step_reduced(*chunk) for worker, chunk in zip(workers, last, strict=True)])
