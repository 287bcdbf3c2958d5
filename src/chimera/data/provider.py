"""Providers of training data: they assign samples to workers, and run the actors that prepare data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from chimera.data.assignment import orders
from chimera.data.dataset import RowData
from chimera.data.order import Order, OwnOrder
from chimera.data.partition import Partitioner


class DataProvider(ABC):
    """The training data of a run, as its workers read it."""

    @abstractmethod
    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[Any]:
        """Return the order of each of ``world_size`` workers.

        The orders start at step ``since``, before which ``begin`` samples were read.
        """

    @property
    def actors(self) -> list[Any]:
        """The actors that prepare the data; empty if there are none."""
        return []

    def replace_lost(self) -> list[str]:
        """Replace dead actors that prepare data; return their names. The orders change if an actor was replaced."""
        return []

    def fill(self) -> dict[str, float]:
        """Return the fill of each queue between the data and the workers, 0 to 1, where it is known without waiting."""
        return {}

    def end(self) -> None:  # noqa: B027 - most providers start no actors
        """Kill the actors that the provider started."""


@dataclass(frozen=True)
class PartitionedData(DataProvider):
    """A data set in memory, partitioned among the workers.

    Attributes
    ----------
    dataset, partitioner : the data, and the assignment of samples to workers.
    batch_size, seed, test_share : arguments of the orders.
    """

    dataset: RowData
    partitioner: Partitioner
    batch_size: int
    seed: int
    test_share: float | None = None

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[Order]:
        """Return orders by the parts that the partitioner returns."""
        return orders(
            self.partitioner,
            self.dataset,
            world_size,
            self.batch_size,
            self.seed,
            since=since,
            begin=begin,
            test_share=self.test_share,
        )

    def train_size(self, world_size: int) -> int:
        """Return the number of samples that ``world_size`` workers train on: all but those that they keep for evaluation."""
        if self.test_share is None:
            return len(self.dataset)
        return round(self.orders(world_size)[0].steps_per_epoch * world_size * self.batch_size)


@dataclass(frozen=True)
class WorkerData(DataProvider):
    """Data that each worker has locally, and the driver does not have."""

    batch_size: int
    seed: int
    test_share: float | None = None

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[OwnOrder]:  # noqa: ARG002 - local steps continue
        """Return an order of local data for each worker."""
        return [OwnOrder(self.batch_size, self.seed, self.test_share)] * world_size
