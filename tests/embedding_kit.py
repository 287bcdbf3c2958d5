"""A small embedding model in NumPy that returns the rows that a batch needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.parameters import Flat, Layout
from chimera.data.dataset import Dataset
from chimera.data.split import Split

WORDS, WIDTH = 400, 6


class Embedding:
    """CBOW with negative samples that all windows of a batch share."""

    def __init__(self, words: int = WORDS, width: int = WIDTH, negatives: int = 8) -> None:
        self.layout = Layout(("embedding", "output", "bias"), ((words, width), (words, width), (words,)))
        self._words, self._negatives = words, negatives
        self._flat = np.zeros(self.layout.size, np.float32)
        self._flat[: words * width] = np.random.default_rng(3).normal(0, 0.3, words * width)
        self._seed = 0
        self.full_gradients = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._flat = self._flat.copy()  # an engine's values are read-only

    def parameters(self) -> Flat:
        return self._flat

    def load(self, flat: Flat) -> None:
        self._flat[:] = flat

    def reseed(self, seed: int) -> None:
        self._seed = seed

    def buffers(self) -> Flat:
        return np.zeros(0, np.float32)

    def load_buffers(self, flat: Flat) -> None:
        pass

    def _drawn(self) -> NDArray[np.int64]:
        return np.random.default_rng(self._seed).integers(0, self._words, self._negatives)

    def rows(self, batch: Any) -> dict[str, NDArray[np.int64]]:
        return self._read(batch)

    def _read(self, batch: Any) -> dict[str, NDArray[np.int64]]:
        inputs, targets = batch
        outputs = np.unique(np.concatenate([targets, self._drawn()]))
        return {"embedding": np.unique(inputs), "output": outputs, "bias": outputs}

    def row_gradient(self, batch: Any) -> tuple[dict[str, tuple[NDArray[Any], NDArray[Any]]], float]:
        inputs, targets = batch
        need, tables = self._read(batch), self.layout.split(self._flat)
        words, outputs = need["embedding"], need["output"]
        context = tables["embedding"][inputs].mean(1)
        scores = context @ tables["output"][outputs].T + tables["bias"][outputs]
        right = outputs == targets[:, None]
        given = 1 / (1 + np.exp(-scores, dtype=np.float32))
        loss = float(-np.log(np.where(right, given, 1 - given) + 1e-7).sum(1).mean())
        error = ((given - right) / len(inputs)).astype(np.float32)
        own = np.zeros((words.size, context.shape[1]), np.float32)
        share = (error @ tables["output"][outputs] / inputs.shape[1]).astype(np.float32)
        for column in inputs.T:
            np.add.at(own, np.searchsorted(words, column), share)
        return {
            "embedding": (words, own),
            "output": (outputs, error.T @ context),
            "bias": (outputs, error.sum(0)),
        }, loss

    def gradient(self, batch: Any) -> tuple[Flat, float]:
        self.full_gradients += 1
        found, loss = self.row_gradient(batch)
        flat = np.zeros_like(self._flat)
        for name, tensor in self.layout.split(flat).items():
            tensor[found[name][0]] = found[name][1]
        return flat, loss

    def evaluate(self, batch: Any) -> dict[str, float]:
        return {"loss": self.row_gradient(batch)[1]}

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        tables = self.layout.split(self._flat)
        return (tables["embedding"][inputs].mean(1) @ tables["output"].T + tables["bias"]).argmax(1)


def windows(count: int = 2000, words: int = WORDS, seed: int = 0) -> Split:
    """Return windows whose middle word depends on its neighbours; word frequencies are skewed, as in a text."""
    rng = np.random.default_rng(seed)
    inputs = (words * rng.random((count, 4)) ** 3).astype(np.int64)
    targets = inputs.min(1)
    names = tuple(map(str, range(words)))
    return Split(*(Dataset(inputs[part], targets[part], names) for part in (slice(100, None), slice(0, 100))))
