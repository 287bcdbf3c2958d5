"""A sharded, asynchronous parameter server that uses only the methods of an engine; the argument is the name of the engine.

Two servers hold half of the weights each. Three workers fit a linear map, each to its own data and at its own speed. The
driver handles refs only: weights and gradients go from actor to actor.

Takes about 2 s on two cores.
"""

import sys

import numpy as np

import chimera

TRUTH = np.linspace(-1, 1, 20, dtype=np.float32)


class Worker:
    """A worker that computes gradients of the squared error; an actor may be of any class."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def gradient(self, *shards: np.ndarray) -> list[np.ndarray]:
        """Return the gradient on 32 new samples, one piece for each shard."""
        inputs = self.random.normal(size=(32, TRUTH.size)).astype(np.float32)
        errors = inputs @ (np.concatenate(shards) - TRUTH)
        return np.split(inputs.T @ errors / len(inputs), len(shards))


# ruff: noqa: D101, D102, D103 - from here on, fifteen lines
class Server:
    def __init__(self, size):
        self.weights = np.zeros(size, np.float32)

    def push(self, *gradients):
        self.weights = self.weights - 0.1 * sum(gradients)
        return self.weights


def train(engine, servers, workers, updates):
    weights = [server.push() for server in servers]
    pending = {worker: worker.gradient(*weights, returns=len(servers)) for worker in workers}
    for _ in range(updates):
        (first, *_), _ = engine.wait([pieces[0] for pieces in pending.values()])
        worker = next(worker for worker, pieces in pending.items() if pieces[0] is first)
        weights = [server.push(piece) for server, piece in zip(servers, pending[worker], strict=True)]
        pending[worker] = worker.gradient(*weights, returns=len(servers))
    return np.concatenate(engine.get(weights))


if __name__ == "__main__":
    with chimera.engine(sys.argv[1] if sys.argv[1:] else "local") as engine:
        found = train(
            engine,
            servers=[engine.spawn(Server, TRUTH.size // 2) for _ in range(2)],
            workers=[engine.spawn(Worker, seed) for seed in range(3)],
            updates=200,
        )
        print(f"largest error after {engine.now():.3f} s: {np.abs(found - TRUTH).max():.1e}")
