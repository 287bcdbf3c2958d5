"""The protocol between coordinator and workers: messages, and the interface of a link to a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from chimera.core.errors import ConflictError

PATH = "/v1/worker"
"""The prefix of a worker's REST routes."""

MAX_PREPARED = 100
"""Maximum number of models of `Link.prepare`."""

BatchId: TypeAlias = tuple[str, int]
"""Number of a job, and number of one of its batches."""


class StaleEpoch(ConflictError):  # noqa: N818 - it says what the epoch is
    """The worker serves a coordinator of a later epoch, and refuses the caller."""


class Assignment(Struct, frozen=True):
    """A batch to compute.

    Attributes
    ----------
    model : table of the model (`chimera.inference.models`).
    limit_s : seconds in which the batch must be computed, without loading the model; 0: no limit.
    limit_loads : minimum of the limit, as a multiple of the model's load time.
    ahead : whether the worker computes this batch before the batches that it has not begun.
    """

    job: str
    batch: int
    model: dict[str, Any]
    queries: list[Any]
    limit_s: Annotated[float, Meta(ge=0)] = 0.0
    limit_loads: Annotated[float, Meta(ge=0)] = 0.0
    ahead: bool = False

    @property
    def batch_id(self) -> BatchId:
        """The batch."""
        return self.job, self.batch


class WorkerState(Struct, frozen=True):
    """The state of a worker.

    Attributes
    ----------
    computing : the batch in progress, also while its model is loaded.
    queued : the batches after it, in order.
    kept : the batches whose results are not acknowledged yet.
    loaded : keys of the models in memory (`chimera.inference.models.spec.key_of`).
    loading : key of the model that is being loaded.
    busy_s : total seconds with a batch in progress.
    up_s : seconds since its start.
    silent : whether its computing process is stopped, by SIGSTOP for example.
    draining : whether it finishes its batches, and gets no more: because of `Link.drain`, or because it exits then.
    without : errors of modules of ``--preload`` that the worker runs without; empty if there are none.
    """

    name: str
    pid: int
    computing: BatchId | None
    queued: list[BatchId]
    kept: list[BatchId]
    loaded: list[str]
    loading: str | None
    busy_s: float
    up_s: float
    silent: bool = False
    draining: bool = False
    without: str = ""


class Finished(Struct, frozen=True):
    """The end of a batch: its results, or the reason why there are none.

    Attributes
    ----------
    seconds : seconds of computing, without loading the model.
    errors : number of queries with an error.
    results : packed list (`chimera.engines.http.wire`) of ``{"result": value}`` or ``{"error": text}``, one per query.
    tokens : number of tokens of the queries and their results, see `chimera.inference.models.answers.tokens_of`.
    failure : why the computing process ended before the batch was finished; empty if there are results.
    loading : whether the process ended while it loaded the model.
    error : the first of the errors; empty if there is none.
    unloaded : whether the errors are those of a model that could not be loaded.
    answers : number of the results, if the coordinator has checked them (`chimera.inference.remote_workers.link`).
    """

    job: str
    batch: int
    seconds: float
    errors: int
    results: bytes
    tokens: int = 0
    failure: str = ""
    loading: bool = False
    error: str = ""
    unloaded: bool = False
    answers: int | None = None

    @property
    def batch_id(self) -> BatchId:
        """The batch."""
        return self.job, self.batch


class Piece(Struct, frozen=True):
    """A part of the text of an answer that is being generated.

    Attributes
    ----------
    index : index of the query in its batch.
    at : position of the part in the text.
    """

    job: str
    batch: int
    index: int
    at: int
    text: str


class Collected(Struct, frozen=True):
    """A worker's answer to `Link.collect`. A piece is sent once; the results have the whole texts."""

    state: WorkerState
    results: list[Finished]
    pieces: list[Piece] = []


class Link(ABC):
    """The coordinator's connection to one worker, for one thread at a time.

    Raises
    ------
    Unreachable : the connection failed: the worker is dead (`chimera.engines.http.connection`).
    TimeLimitError : no answer came in time: the worker hangs, or the network is down.
    StaleEpoch : a later coordinator has taken over.
    RunError : the answer was invalid.
    """

    @abstractmethod
    def adopt(self, epoch: int, owner: str) -> WorkerState:
        """Become the worker's coordinator. Results that an earlier one has not acknowledged are sent again."""

    @abstractmethod
    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        """Queue batches. A batch that the worker has, or whose result it keeps, is not computed twice."""

    @abstractmethod
    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        """Acknowledge the results ``done``, and return the results that were not sent yet.

        If there are none, wait for a result or a change of the worker's state, at most ``wait_s`` seconds. A result that is not
        acknowledged within a second is sent again.
        """

    @abstractmethod
    def prepare(self, epoch: int, models: Sequence[dict[str, Any]]) -> None:
        """Get ready for models, given by their tables, while the worker waits or computes; at most `MAX_PREPARED`."""

    @abstractmethod
    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        """Drop the batches of these jobs. If one of them is in progress, kill the computing process, and start another."""

    @abstractmethod
    def drain(self, epoch: int) -> WorkerState:
        """Record in the worker that it gets no more batches, so that the next coordinator knows this."""

    @abstractmethod
    def stop(self, epoch: int) -> None:
        """Stop the worker."""

    @abstractmethod
    def close(self) -> None:
        """Abort the request in progress, and close the connection. Any thread may call it."""
