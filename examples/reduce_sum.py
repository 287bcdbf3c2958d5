"""Workers add up a million numbers, each worker its share: python examples/reduce_sum.py [local|ray|simulated] [WORKERS].

Takes about 2 s on two cores.
"""

import sys

import numpy as np

import chimera


def reduce_sum(worker, count):
    """Return the sum of this worker's numbers, and the total over all workers."""
    own = np.arange(worker.rank, count, worker.world_size)
    return own.sum(), worker.all_reduce(own.sum())


if __name__ == "__main__":
    engine = sys.argv[1] if len(sys.argv) > 1 else "local"
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    for rank, (own, total) in enumerate(chimera.remote.run(reduce_sum, 1_000_000, workers=workers, engine=engine)):
        print(f"worker {rank} added {own}; the total is {total}")
