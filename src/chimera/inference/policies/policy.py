"""The interface of a policy: it decides which job a free worker serves next. No I/O and no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from chimera.core.registry import Registry


class Contender(NamedTuple):
    """A job that has waiting queries and may use one more worker.

    Attributes
    ----------
    job : number of the job.
    order : position in the order of submission.
    weight : weight of its share.
    charged : queries dispatched, divided by the weight at the time; a new job starts at the lowest charge of the others.
    batch : number of queries in its next batch.
    rate : queries finished per second, over the last 10 s.
    workers : number of other workers that serve it.
    loading : number of its running batches whose workers had to load the model first.
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
    """A policy."""

    @abstractmethod
    def choose(self, contenders: Sequence[Contender], workers: int) -> str:
        """Return the job that a free worker serves next.

        Parameters
        ----------
        contenders : at least one, in the order in which they were submitted.
        workers : number of available workers.
        """


POLICIES: Registry[Policy] = Registry("inference policy", "chimera.inference.policies")
