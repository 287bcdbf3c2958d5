"""Tree all-reduce, by messages (Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH")."""

from __future__ import annotations

from collections.abc import Iterator

from chimera.strategies.all_reduce import AllReduce
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("tree-all-reduce")
class TreeAllReduce(AllReduce):
    """`all-reduce` as visible messages in a binary tree: few steps, whole vectors (Thakur et al. 2005).

    Workers send sums up to the first worker, and the total back down, in about 2 log2(n) steps. Inner workers send and receive
    whole vectors several times, while a ring spreads the traffic evenly. Vectors are float32; the codec is not used.
    """

    sends = "nothing"
    worker_extensions = ("chunked-sum",)

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        yield from self.level(cluster)
        workers = cluster.workers
        n = len(workers)
        children = [[j for j in (2 * i + 1, 2 * i + 2) if j < n] for i in range(n)]
        while True:
            made = [worker.contribute(1, None if children[i] else 0, returns=2) for i, worker in enumerate(workers)]
            own, up = ([refs[place] for refs in made] for place in (0, 1))
            for i in reversed(range(n)):
                if children[i]:
                    own[i], up[i] = workers[i].add(0, own[i], *(up[j] for j in children[i]), returns=2)
            down, done = up[:1], []
            for i, worker in enumerate(workers):
                if i and children[i]:
                    own[i], total = worker.take(0, down[(i - 1) // 2], returns=2)
                    down.append(total)
                last = (0, down[(i - 1) // 2]) if i and not children[i] else (None, own[i])
                done.append(worker.step_reduced(*last))
            yield Round(done)
