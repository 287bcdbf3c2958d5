"""Messages between the coordinator and the workers of an attempt during its start, and the actions that they cause.

The start is a two-phase commit (Gray 1978, "Notes on Data Base Operating Systems") in which each promise of a worker is a lease
(Gray and Cheriton 1989, "Leases: An Efficient Fault-Tolerant Mechanism for Distributed File Cache Consistency"). A worker is
reserved for one attempt until its lease expires, and is then free without any message. A lost process therefore blocks no other
process for longer than a lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import Struct

from chimera.core.errors import ConfigurationError
from chimera.jobs.store.states import Event


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of a start, in seconds.

    Attributes
    ----------
    reserve_s : time until all workers are reserved.
    prepare_s : time until all workers have received and verified the files of the job.
    commit_s : time until all workers have started; also the longest expected delay of a message.
    heartbeat_timeout_s : time without a heartbeat of the attempt after which a started worker is free. It is longer
        than ``commit_s``, so that the first worker is still started when the last one starts.
    resend_s : time without an answer after which a message is sent again.
    """

    reserve_s: float = 2.0
    prepare_s: float = 60.0
    commit_s: float = 5.0
    heartbeat_timeout_s: float = 10.0
    resend_s: float = 0.5

    def __post_init__(self) -> None:
        if not min(self.reserve_s, self.prepare_s, self.commit_s, self.heartbeat_timeout_s, self.resend_s) > 0:
            raise ConfigurationError("each limit of the start of a job must be above 0 s")
        if self.heartbeat_timeout_s <= self.commit_s:
            raise ConfigurationError(
                f"heartbeat_timeout_s = {self.heartbeat_timeout_s} must be above commit_s = {self.commit_s}"
            )

    @property
    def max_lease_s(self) -> float:
        """Longest time that a worker stays reserved for an attempt that it does not start, in seconds."""
        return self.reserve_s + self.prepare_s + 2 * self.commit_s


class Attempt(Struct, frozen=True):
    """An attempt to run a job. Numbers of a job's attempts grow, so a later attempt implies that all earlier ones are over."""

    job: str
    number: int


class Requirements(Struct, frozen=True):
    """Requirements on a worker: compatible versions of Chimera, Python and torch, and importable modules."""

    versions: Mapping[str, str] = {}
    modules: tuple[str, ...] = ()


class Reserve(Struct, frozen=True, tag=True):
    """Request to reserve the worker for ``lease_s`` seconds, if it is free and meets the requirements."""

    attempt: Attempt
    requirements: Requirements
    lease_s: float


class Prepare(Struct, frozen=True, tag=True):
    """Request to receive and verify the files of the assignment, and to stay reserved for ``lease_s`` seconds."""

    attempt: Attempt
    assignment: Mapping[str, Any]
    lease_s: float


class Commit(Struct, frozen=True, tag=True):
    """Request to start the attempt, after the commit is recorded; it ends after ``lease_s`` seconds without a heartbeat."""

    attempt: Attempt
    lease_s: float


class Release(Struct, frozen=True, tag=True):
    """Notice that the attempt is over: the worker becomes free and ignores all later messages about the attempt."""

    attempt: Attempt
    reason: str


class Reserved(Struct, frozen=True, tag=True):
    """Answer to `Reserve`: the worker is reserved."""

    attempt: Attempt


class Prepared(Struct, frozen=True, tag=True):
    """Answer to `Prepare`: all files are verified."""

    attempt: Attempt


class Started(Struct, frozen=True, tag=True):
    """Answer to `Commit`: the worker has started."""

    attempt: Attempt


class Refused(Struct, frozen=True, tag=True):
    """Answer that the worker cannot run the attempt; ``permanent`` if another request would be refused, too."""

    attempt: Attempt
    reason: str
    permanent: bool = False


ToWorker: TypeAlias = Reserve | Prepare | Commit | Release
ToCoordinator: TypeAlias = Reserved | Prepared | Started | Refused


class CheckRequirements(Struct, frozen=True):
    """Action of a worker: check whether this machine meets the requirements, then call `WorkerLease.completed`."""

    attempt: Attempt
    requirements: Requirements


class ReceiveFiles(Struct, frozen=True):
    """Action of a worker: receive and verify the files of the assignment, then call `WorkerLease.completed`."""

    attempt: Attempt
    assignment: Mapping[str, Any]


class BeginAttempt(Struct, frozen=True):
    """Action of a worker: start the attempt."""

    attempt: Attempt


class EndAttempt(Struct, frozen=True):
    """Action of a worker: end all work for the attempt, before any later action."""

    attempt: Attempt
    reason: str


Effect: TypeAlias = CheckRequirements | ReceiveFiles | BeginAttempt | EndAttempt


class Send(Struct, frozen=True):
    """Action of the coordinator: send a message to a worker."""

    worker: str
    message: ToWorker


class RecordCommit(Struct, frozen=True):
    """Action of the coordinator: record that the attempt is committed, then call `AttemptStart.commit_recorded`."""

    attempt: Attempt


class AllStarted(Struct, frozen=True):
    """Notice for the coordinator: all workers have started."""

    attempt: Attempt


class AttemptEnded(Struct, frozen=True):
    """Action of the coordinator: apply the event to the job, since the attempt is over.

    ``unanswered`` names the workers that did not answer within the limit of a phase.
    """

    attempt: Attempt
    event: Event
    reason: str
    unanswered: tuple[str, ...] = ()


CoordinatorAction: TypeAlias = Send | RecordCommit | AllStarted | AttemptEnded
