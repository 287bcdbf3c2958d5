"""A policy decides which job a free worker serves next. It does no I/O and keeps no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from chimera.core.registry import Registry


class Contender(NamedTuple):
    """A job that has queries waiting and may have one more worker.

    Attributes
    ----------
    job : its name for the cluster.
    order : jobs that came later have a higher one.
    weight : of its share.
    charged : queries dispatched, divided by the weight in force at the time; a newcomer begins at the lowest of the others.
    batch : queries in the batch that it would dispatch next.
    rate : queries finished per second, over the last 10 s.
    workers : how many others serve it now.
    loading : batches of it under way at workers that have to load its model first.
    loaded : whether the free worker has its model in memory.
    """

    job: str
    order: int
    weight: float
    charged: float
    batch: int
    rate: float
    workers: int
    loading: int
    loaded: bool


class Policy(ABC):
    """Who is served next."""

    @abstractmethod
    def choose(self, contenders: Sequence[Contender], workers: int) -> str:
        """Return the job that a free worker serves next.

        Parameters
        ----------
        contenders : at least one, in the order in which they were submitted.
        workers : how many workers live.
        """


POLICIES: Registry[Policy] = Registry("inference policy", "chimera.inference.policies")
