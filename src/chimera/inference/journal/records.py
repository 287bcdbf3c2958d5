"""What happens to jobs, as the journal keeps it: whoever applies all records in order has the state of the cluster.

Times are seconds since the epoch; ``at_s`` is when the coordinator knew.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct


class Accepted(Struct, frozen=True, tag=True):
    """A job was taken on; its queries are stored.

    Attributes
    ----------
    job : its number as a text, by which all else names it.
    key : made by whoever submitted it; a request that comes twice is one job.
    model : what loads the model, as a table (`chimera.inference.models`).
    queries : how many there are.
    weight : of its share of the query rate, above 0.
    batch_size : queries a batch; 0 is as many as take about as long as the scheduler aims at.
    max_workers : how many may serve it at once; 0 is any number.
    open : whether queries come as they come, and the results go to whoever waits for them: a model that is served online. Of
        such a job the journal keeps only that it is there.
    """

    job: str
    key: str
    name: str
    model: dict[str, Any]
    queries: int
    weight: float
    batch_size: int
    max_workers: int
    at_s: float
    open: bool = False


class Arrived(Struct, frozen=True, tag=True):
    """So many more queries of an open job wait."""

    job: str
    count: int
    at_s: float


class Withdrawn(Struct, frozen=True, tag=True):
    """Nobody waits any more for so many queries of an open job, which are in no batch yet."""

    job: str
    count: int
    at_s: float


class Closed(Struct, frozen=True, tag=True):
    """To an open job no more queries come; those that are there are answered."""

    job: str
    at_s: float


class Changed(Struct, frozen=True, tag=True):
    """A job was given another batch size, weight or number of workers; None leaves it as it is."""

    job: str
    at_s: float
    weight: float | None = None
    batch_size: int | None = None
    max_workers: int | None = None


class Dispatched(Struct, frozen=True, tag=True):
    """A batch, the queries ``first`` to ``first + count``, goes to a worker; for the first time or again.

    ``cold`` is whether that worker has to load the model first.
    """

    job: str
    batch: int
    first: int
    count: int
    worker: str
    at_s: float
    cold: bool = False


class Committed(Struct, frozen=True, tag=True):
    """The results of a batch are stored, for good.

    Attributes
    ----------
    seconds : that the worker computed.
    errors : how many of its queries have an error for a result.
    """

    job: str
    batch: int
    worker: str
    seconds: float
    errors: int
    at_s: float


class Returned(Struct, frozen=True, tag=True):
    """A worker will not finish a batch, and it is to be dispatched again.

    Attributes
    ----------
    blamed : whether the batch may have killed its worker.
    """

    job: str
    batch: int
    worker: str
    why: str
    blamed: bool
    at_s: float


class Poisoned(Struct, frozen=True, tag=True):
    """A batch has killed too many workers; each of its queries has this for an error."""

    job: str
    batch: int
    why: str
    at_s: float


class Cancelled(Struct, frozen=True, tag=True):
    """A job goes no further; the results that it has stay. ``why`` is there where it was no person who cancelled it."""

    job: str
    why: str
    at_s: float


class Dropped(Struct, frozen=True, tag=True):
    """A job that has ended is forgotten, with its results. What is left of it in the journal goes soon."""

    job: str
    at_s: float


Lasting: TypeAlias = Accepted | Changed | Closed | Cancelled | Dropped
"""What a successor has to know of every job, an open one too."""
Record: TypeAlias = Lasting | Arrived | Withdrawn | Dispatched | Committed | Returned | Poisoned


class _OfJob(Struct):
    job: str


_JOB = msgspec.json.Decoder(_OfJob)


def job_of(packed: bytes) -> str:
    """Return the job of a record that was packed as JSON; nothing for what is none."""
    try:
        return _JOB.decode(packed).job
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
