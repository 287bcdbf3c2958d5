"""Who says which samples each worker reads, and keeps up what prepares them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from chimera.data.dataset import Dataset
from chimera.data.order import Order, OwnOrder, orders
from chimera.data.partition import Partitioner


class Supply(ABC):
    """The training data as workers get at them."""

    @abstractmethod
    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[Any]:
        """Return the order of each of so many workers, by place.

        They count from step ``since``, before which ``begin`` samples were dealt.
        """

    @property
    def actors(self) -> list[Any]:
        """What prepares the data, if that are actors."""
        return []

    def mend(self) -> list[str]:
        """Start anew what prepares the data and has died; return its names. The orders are others then."""
        return []

    def fill(self) -> dict[str, float]:
        """Return how full each queue between the data and the workers is, 0 to 1, as far as that is known without waiting."""
        return {}

    def end(self) -> None:  # noqa: B027 - most have nothing to end
        """End what it started."""


@dataclass(frozen=True)
class Parted(Supply):
    """A data set in memory, parted among the workers.

    Attributes
    ----------
    dataset, partitioner : what is parted, and how.
    batch_size, seed : of the orders.
    """

    dataset: Dataset
    partitioner: Partitioner
    batch_size: int
    seed: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[Order]:
        """Return what the partitioner says."""
        return orders(self.partitioner, self.dataset, world_size, self.batch_size, self.seed, since=since, begin=begin)


@dataclass(frozen=True)
class Owned(Supply):
    """Data of the workers' own, which the driver does not have."""

    batch_size: int
    seed: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[OwnOrder]:  # noqa: ARG002 - all their own
        """Return that everybody reads his own."""
        return [OwnOrder(self.batch_size, self.seed)] * world_size
