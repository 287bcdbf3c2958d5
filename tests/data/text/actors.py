"""Actors of the tests of pipelines, in a module that any process can import."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.core.errors import ConflictError
from chimera.data.text.pipeline.prefetch import PrefetchQueue
from chimera.data.text.text import Text


class ReadingLearner:
    """A learner that reads batches and returns them."""

    def __init__(self, text: Text, order: Any) -> None:
        self.text, self.order = text, order

    def follow(self, order: Any) -> None:
        self.order = order

    def read(self, steps: list[int]) -> Any:
        """Return the windows of these steps, shape (steps, batch_size, width)."""
        rows = []
        for step in steps:
            inputs, targets = self.text.take(self.order.batch(step))
            rows.append(np.insert(inputs, inputs.shape[1] // 2, targets, axis=1))
        return np.array(rows, np.int32)

    def fill(self) -> float:
        return float(self.order.fill())


class Producer:
    """A producer of consecutive values."""

    def __init__(self, first: int) -> None:
        self.first = first

    def value(self, place: int) -> int:
        return self.first + place

    def failing(self, place: int) -> int:
        raise ConflictError(f"there is no value at {place}")


class Consumer:
    """A consumer that prefetches two values from a producer."""

    def __init__(self, producer: Any, fails_from: int = 1000) -> None:
        self.producer, self.fails_from = producer, fails_from
        self.calls = PrefetchQueue(self.request, 1, 2)

    def request(self, place: int) -> Any:
        return self.producer.value(place) if place < self.fails_from else self.producer.failing(place)

    def take(self, place: int) -> int:
        return int(self.calls.get(place))

    def waiting(self) -> int:
        return self.calls.done()

    def follow(self, producer: Any) -> None:
        self.producer = producer
