"""Batches of a job: consecutive queries that a worker computes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct


class Batch(Struct, frozen=True):
    """The queries from ``first`` to ``first + count - 1`` of a job."""

    number: int
    first: int
    count: int

    def split(self, numbers: Sequence[int]) -> list[Batch]:
        """Return new batches with these numbers, of about equal size, that have the same queries in the same order."""
        parts, first = [], self.first
        for place, number in enumerate(numbers):
            count = (self.first + self.count - first) // (len(numbers) - place)
            parts.append(Batch(number, first, count))
            first += count
        return parts


class Running(NamedTuple):
    """A running batch, and its job's charge for it."""

    batch: Batch
    worker: str
    since_s: float
    charge: float
    cold: bool
