"""What a worker is asked and what it tells, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from chimera.core.errors import ConflictError

PATH = "/v1/worker"
"""The prefix of a worker's REST routes."""

BatchId: TypeAlias = tuple[str, int]
"""A job and the number of a batch."""


class StaleEpoch(ConflictError):  # noqa: N818 - it says what the epoch is
    """The worker has heard of a later coordinator, and does nothing for this one."""


class Assignment(Struct, frozen=True):
    """A batch to compute.

    Attributes
    ----------
    model : what loads the model, as a table (`chimera.inference.models`).
    """

    job: str
    batch: int
    model: dict[str, Any]
    queries: list[Any]

    @property
    def batch_id(self) -> BatchId:
        """Which batch it is."""
        return self.job, self.batch


class WorkerState(Struct, frozen=True):
    """What a worker is doing.

    Attributes
    ----------
    computing : the batch in hand, also while its model is being loaded.
    queued : those that come after it, in order.
    kept : those whose results lie there until they are acknowledged.
    loaded : the keys of the models in memory (`chimera.inference.models.spec.key_of`).
    loading : the key of the model that is being loaded.
    busy_s : for how long it has had a batch in hand.
    up_s : for how long it has been there.
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


class Finished(Struct, frozen=True):
    """The results of a batch.

    Attributes
    ----------
    seconds : that computing took, without loading the model.
    errors : how many of its queries have an error for a result.
    results : the packed list (`chimera.engines.http.wire`) of ``{"result": value}`` or ``{"error": text}``, one a query.
    """

    job: str
    batch: int
    seconds: float
    errors: int
    results: bytes

    @property
    def batch_id(self) -> BatchId:
        """Which batch it is."""
        return self.job, self.batch


class Collected(Struct, frozen=True):
    """What a worker answers to whoever collects results."""

    state: WorkerState
    results: list[Finished]


class Link(ABC):
    """The coordinator's end of one worker, for one thread at a time.

    Raises
    ------
    Unreachable : nobody is there, or the connection broke off: the worker is dead (`chimera.engines.http.connection`).
    TimeLimitError : no answer came in time: it hangs, or is cut off.
    StaleEpoch : a later coordinator has taken over.
    RunError : it answered what no worker answers.
    """

    @abstractmethod
    def adopt(self, epoch: int, owner: str) -> WorkerState:
        """Be its coordinator from now on. Results that an earlier one has collected, and not acknowledged, come again."""

    @abstractmethod
    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        """Let it compute batches after those that it has; one that it has or keeps already is not computed twice."""

    @abstractmethod
    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        """Acknowledge results, and return those that were not sent yet.

        It returns at once if there are any, else at a change of the worker's state, at the latest after ``wait_s``. A result
        that is not acknowledged within a second of being sent is sent again.
        """

    @abstractmethod
    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        """Drop what is queued for these jobs; the batch in hand is finished all the same."""

    @abstractmethod
    def stop(self, epoch: int) -> None:
        """End the worker."""

    @abstractmethod
    def close(self) -> None:
        """End what is under way, from any thread, and let go of the connection."""
