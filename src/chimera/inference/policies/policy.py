"""The interface of a policy: it decides which job a free worker serves next. No I/O and no clock.

The shares of jobs are measured in queries or in tokens, see `FAIR_BY`; a policy does not know which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.core.registry import Registry

FAIR_BY = ("queries", "tokens")
"""The units in which the shares of jobs are measured. A query that reports no tokens counts as one token."""


class Contender(NamedTuple):
    """A job that has waiting queries and may use one more worker.

    Attributes
    ----------
    job : number of the job.
    order : position in the order of submission.
    weight : weight of its share.
    charged : units dispatched, divided by the weight at the time; a new job starts at the lowest charge of the others.
    batch : units of its next batch if no other job waited; of tokens, the expected number.
    rate : units finished per second, over the last 10 s.
    workers : number of other workers that serve it.
    loading : number of its running batches whose workers had to load the model first.
    loaded : whether the free worker has its model in memory.
    """

    job: str
    order: int
    weight: float
    charged: float
    batch: float
    rate: float
    workers: int
    loading: int
    loaded: bool


def check_fair_by(unit: str) -> None:
    """Raise ConfigurationError if this is not a unit of `FAIR_BY`."""
    if unit not in FAIR_BY:
        raise ConfigurationError(f"fair_by = {unit!r}{did_you_mean(unit, FAIR_BY)} known: {', '.join(FAIR_BY)}")


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


POLICIES: Registry[Policy] = Registry("inference policy", "chimera.inference.policies", family="policies")
