"""All-reduce in a ring, by messages (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce Algorithms ...", section 4)."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.strategies.all_reduce import AllReduce
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("ring-all-reduce")
class RingAllReduce(AllReduce):
    """`all-reduce` as visible messages in a ring: each worker sends 2(n-1)/n of a vector (Patarasuk and Yuan 2009).

    The gradient is cut into n chunks. In each of the n-1 steps of the reduce-scatter, a worker sends a chunk to the next
    worker, which adds its own. In the n-1 steps of the all-gather, the complete sums go around the ring. Chunks are float32;
    the codec is not used.
    """

    sends = "nothing"
    worker_extensions = ("chunked-sum",)

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        yield from self.level(cluster)
        workers = cluster.workers
        n = len(workers)
        while True:
            made = [worker.contribute(n, i, returns=2) for i, worker in enumerate(workers)]
            own, chunks = ([refs[place] for refs in made] for place in (0, 1))
            for step in range(1, n):  # reduce-scatter
                made = [
                    worker.add((i - step) % n, own[i], chunks[i - 1], returns=2) for i, worker in enumerate(workers)
                ]
                chunks = [chunk for _, chunk in made]
            for step in range(n - 2):  # all-gather, except its last step
                made = [worker.take((i - step) % n, chunks[i - 1], returns=2) for i, worker in enumerate(workers)]
                chunks = [chunk for _, chunk in made]
            last = [((i + 2) % n, chunks[i - 1]) if n > 1 else (None, own[i]) for i in range(n)]
            yield Round([worker.step_reduced(*chunk) for worker, chunk in zip(workers, last, strict=True)])
