"""Four workers greet their neighbours: python examples/hello_world.py [local|ray|simulated].

Takes about 2 s on two cores.
"""

import os
import sys

import chimera


def hello(worker, greeting):
    """Send a greeting to the next worker, and return the greeting of the previous worker."""
    right, left = (worker.rank + 1) % worker.world_size, (worker.rank - 1) % worker.world_size
    worker.send(right, f"{greeting} from worker {worker.rank}, process {os.getpid()}")
    return worker.recv(left)


if __name__ == "__main__":
    engine = sys.argv[1] if len(sys.argv) > 1 else "local"
    for rank, received in enumerate(chimera.remote.run(hello, "hello", workers=4, engine=engine)):
        print(f"worker {rank} received: {received}")
