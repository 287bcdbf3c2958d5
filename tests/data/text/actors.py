"""A learner that only reads. It stands in a module of its own, so that any process can import it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.core.errors import ConflictError
from chimera.data.text.calls import Calls
from chimera.data.text.text import Text


class ReadingLearner:
    """Takes batches as a learner does, and gives them back."""

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


class Source:
    """Makes values that follow each other."""

    def __init__(self, first: int) -> None:
        self.first = first

    def value(self, place: int) -> int:
        return self.first + place

    def failing(self, place: int) -> int:
        raise ConflictError(f"there is nothing at {place}")


class Taker:
    """Takes values from a source, two ahead."""

    def __init__(self, source: Any, fails_from: int = 1000) -> None:
        self.source, self.fails_from = source, fails_from
        self.calls = Calls(self.ask, 1, 2)

    def ask(self, place: int) -> Any:
        return self.source.value(place) if place < self.fails_from else self.source.failing(place)

    def take(self, place: int) -> int:
        return int(self.calls.get(place))

    def waiting(self) -> int:
        return self.calls.done()

    def follow(self, source: Any) -> None:
        self.source = source
