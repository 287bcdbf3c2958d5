"""A sharded, asynchronous parameter server from an engine's verbs alone; give it the name of an engine.

Two servers hold half of the weights each. Three workers find a linear map, each from data of its own and at its own pace. The
driver sees refs only: weights and gradients go from actor to actor.

Takes about 2 s on two cores.
"""

import sys

import numpy as np

import chimera

TRUTH = np.linspace(-1, 1, 20, dtype=np.float32)


class Worker:
    """Computes gradients of the squared error; any class will do."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def gradient(self, *shards: np.ndarray) -> list[np.ndarray]:
        """Return the gradient on 32 new samples, a piece a shard."""
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
    asked = {worker: worker.gradient(*weights, returns=len(servers)) for worker in workers}
    for _ in range(updates):
        (first, *_), _ = engine.wait([pieces[0] for pieces in asked.values()])
        worker = next(worker for worker, pieces in asked.items() if pieces[0] is first)
        weights = [server.push(piece) for server, piece in zip(servers, asked[worker], strict=True)]
        asked[worker] = worker.gradient(*weights, returns=len(servers))
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
