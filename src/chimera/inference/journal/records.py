"""The records of events of jobs, as the journal stores them. Applying all records in order gives the state of the cluster.

Times are seconds since 1970; ``at_s`` is the time at which the coordinator knew of the event.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct


class InputFile(Struct, frozen=True):
    """A file with queries of a job, as it was when the job was submitted.

    Attributes
    ----------
    path : absolute path, or URL.
    version : size and time of change, or the file system's replacement for the latter.
    queries : number of queries in it.
    """

    path: str
    version: str
    queries: int


class Accepted(Struct, frozen=True, tag=True):
    """A job was accepted; its queries are stored.

    Attributes
    ----------
    job : number of the job as a text; all other records refer to it.
    key : chosen by the client, so that a request that is sent twice is one job.
    model : table of the model (`chimera.inference.models`).
    queries : number of queries.
    weight : weight of its share of the query rate, above 0.
    batch_size : maximum queries per batch; 0: as many as take about the scheduler's target time.
    max_workers : maximum number of workers that serve it at once; 0: no limit.
    open : whether it is a model that is served online: queries arrive over time, and results go to waiting clients. The journal
        stores only the existence and options of such a job.
    batch_timeout_s : time limit of a batch in seconds; 0: from the times of the batches before.
    max_error_rate : the job fails as soon as a larger fraction of its queries has errors, or if all have.
    reserve : number of workers that are reserved for an open job.
    latency_target_s : target seconds until an answer of an open job; 0: none.
    files : the files of the queries, which are not stored then; empty: the queries are in the journal.
    chunks : with files: index of the first query, and bytes, of pieces of at most about 1 MiB or one query.
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
    batch_timeout_s: float = 0.0
    max_error_rate: float = 1.0
    reserve: int = 0
    latency_target_s: float = 0.0
    files: list[InputFile] = []
    chunks: list[tuple[int, int]] = []


class Begun(Struct, frozen=True, tag=True):
    """The submission of a job has begun; its queries arrive until the job is accepted or dropped.

    Attributes
    ----------
    job : the number that the job will have.
    accepted : the job, as it will be accepted, without its time and its number of queries.
    """

    job: str
    key: str
    accepted: Accepted
    at_s: float


class Arrived(Struct, frozen=True, tag=True):
    """``count`` queries of an open job have arrived."""

    job: str
    count: int
    at_s: float


class Withdrawn(Struct, frozen=True, tag=True):
    """Clients no longer wait for ``count`` queries of an open job that are in no batch yet."""

    job: str
    count: int
    at_s: float


class Closed(Struct, frozen=True, tag=True):
    """An open job accepts no more queries; the waiting ones are answered."""

    job: str
    at_s: float


class Changed(Struct, frozen=True, tag=True):
    """The options of a job were changed, see `Accepted`; None: unchanged."""

    job: str
    at_s: float
    weight: float | None = None
    batch_size: int | None = None
    max_workers: int | None = None
    batch_timeout_s: float | None = None
    reserve: int | None = None
    latency_target_s: float | None = None


class Dispatched(Struct, frozen=True, tag=True):
    """A batch, the queries from ``first`` to ``first + count - 1``, was dispatched to a worker, for the first time or again.

    ``cold``: the worker has to load the model first.
    """

    job: str
    batch: int
    first: int
    count: int
    worker: str
    at_s: float
    cold: bool = False


class Committed(Struct, frozen=True, tag=True):
    """The results of a batch are stored permanently.

    Attributes
    ----------
    seconds : seconds that the worker computed.
    errors : number of queries with an error.
    tokens : number of tokens of the queries and their results, see `chimera.inference.models.answers.tokens_of`; 0 in records
        of earlier versions.
    error : the first of these errors; empty if there is none, and in records of earlier versions.
    """

    job: str
    batch: int
    worker: str
    seconds: float
    errors: int
    at_s: float
    tokens: int = 0
    error: str = ""


class Returned(Struct, frozen=True, tag=True):
    """A worker will not finish a batch; the batch will be dispatched again.

    Attributes
    ----------
    blamed : whether the batch may have killed the worker.
    """

    job: str
    batch: int
    worker: str
    why: str
    blamed: bool
    at_s: float


class Failed(Struct, frozen=True, tag=True):
    """A batch has killed its worker's computing process, or exceeded its time limit.

    Its queries will be dispatched again, in new batches with the numbers ``parts``.
    """

    job: str
    batch: int
    worker: str
    why: str
    parts: list[int]
    at_s: float


class Poisoned(Struct, frozen=True, tag=True):
    """A batch has killed too many workers; ``why`` is the error of each of its queries."""

    job: str
    batch: int
    why: str
    at_s: float


BY_USER = "cancelled"
"""The reason of a job that its user has cancelled."""


class Cancelled(Struct, frozen=True, tag=True):
    """A job was cancelled; its results so far are kept. ``why`` is the reason. The job has failed unless it is `BY_USER`."""

    job: str
    why: str
    at_s: float


class Dropped(Struct, frozen=True, tag=True):
    """An ended job, or a submission that is not accepted, was dropped. Its data in the journal are deleted soon."""

    job: str
    at_s: float


JobRecord: TypeAlias = Begun | Accepted | Changed | Closed | Cancelled | Dropped
"""The records that are durable for every job, an open one too."""
Record: TypeAlias = JobRecord | Arrived | Withdrawn | Dispatched | Committed | Returned | Failed | Poisoned


class _OfJob(Struct):
    job: str


_JOB = msgspec.json.Decoder(_OfJob)


def job_of(packed: bytes) -> str:
    """Return the job of a record in JSON; empty if it is no record."""
    try:
        return _JOB.decode(packed).job
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
