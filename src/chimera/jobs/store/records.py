"""Records of a job: its submission, state, events and usage of workers. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from chimera.core.errors import ConfigurationError, ConflictError
from chimera.jobs.store.states import ACTIVE, Event, State, next_state

MAX_BROKEN = 5
"""A job fails after this many lost attempts in a row without further progress."""
MAX_WORKERS = 100_000

Sha256: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_WORKERS)]


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A file, identified by its content; ``size`` is in bytes."""

    sha256: Sha256
    size: Annotated[int, Meta(ge=0)]


class Function(Struct, frozen=True, forbid_unknown_fields=True):
    """A function to run on each worker.

    Attributes
    ----------
    file : path of the source file in the manifest.
    name : qualified name of the function in that file.
    arguments : ``[positional, by keyword]`` as MessagePack; pickles are not accepted from the network.
    """

    file: str
    name: Name
    arguments: bytes = b"\x92\x90\x80"


class Submission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a user to run an experiment or a function. It never changes.

    Attributes
    ----------
    name, user : name of the job and of the user.
    kind : an experiment, as ``chimera train`` runs it, or a function.
    manifest : uploaded files by their path in the job's folder (`chimera.jobs.files.bundle`).
    experiment : unchanged text of the experiment file.
    settings : overrides, as for ``chimera train --set``, including new paths of files that were elsewhere on the client.
    function : the function to run; None for an experiment.
    workers : number of workers, which the job needs at the same time.
    priority : jobs of higher priority start first.
    after : ids of jobs that must be done before.
    requires : imported modules that are not uploaded; every worker must have them.
    versions : versions of Chimera, Python and torch on the client; those of the workers must be compatible.
    """

    name: Name
    user: Name
    kind: Literal["experiment", "function"] = "experiment"
    manifest: Mapping[str, File] = {}
    experiment: str = ""
    settings: tuple[str, ...] = ()
    function: Function | None = None
    workers: Count = 1
    priority: int = 0
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}

    def checked(self) -> Submission:
        """Return the submission if its fields are valid and consistent.

        Raises
        ------
        ConfigurationError : a field is invalid, or fields contradict each other.
        """
        try:
            msgspec.convert(msgspec.to_builtins(self), Submission)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"the job {self.name!r} cannot be submitted: {error}") from error
        if (self.kind == "function") != (self.function is not None) or (self.kind == "experiment") != bool(
            self.experiment
        ):
            raise ConfigurationError(
                f"the job {self.name!r} is of kind {self.kind!r}: give exactly that, an experiment or a function"
            )
        if self.function is not None and self.function.file not in self.manifest:
            raise ConfigurationError(
                f"the job {self.name!r} lacks the file {self.function.file!r} of its function in its manifest"
            )
        return self


class Job(Struct, frozen=True, kw_only=True):
    """A job and its current state.

    Attributes
    ----------
    id : number of the job, as text.
    reason : reason for the state, for users; empty if there is nothing to explain.
    attempt : number of times that the queue picked the job; messages about earlier attempts are ignored.
    broken : attempts in a row that were lost without further progress.
    refused : attempts in a row that did not start.
    progress : highest progress so far, 0 to 1.
    reached : progress when the current attempt started.
    workers : names of its current workers, or of its last ones.
    since_s : time of the last change of state.
    submitted_s : time of the submission.
    """

    id: str
    submission: Submission
    state: State = State.QUEUED
    reason: str = ""
    attempt: int = 0
    broken: int = 0
    refused: int = 0
    progress: float = 0.0
    reached: float = 0.0
    workers: tuple[str, ...] = ()
    since_s: float
    submitted_s: float

    @property
    def active(self) -> bool:
        """Whether the job has an attempt and workers."""
        return self.state in ACTIVE


class JobEvent(Struct, frozen=True):
    """One event of a job, with the state after it."""

    job: str
    at_s: float
    event: Event | None  # None: submission
    state: State
    attempt: int
    reason: str


class Usage(Struct, frozen=True):
    """Workers that a user occupied from ``from_s`` to ``to_s``, which is None while the attempt runs."""

    user: str
    workers: int
    from_s: float
    to_s: float | None


def apply_event(job: Job, event: Event, *, now_s: float, reason: str = "", workers: tuple[str, ...] = ()) -> Job:
    """Return the job after an event. After `MAX_BROKEN` lost attempts in a row the job fails.

    Parameters
    ----------
    workers : names of the workers that will run the job, for ``picked``.

    Raises
    ------
    ConflictError : the event is not possible in the state of the job.
    """
    broken = 0 if event is Event.RETRY or job.progress > job.reached else job.broken
    if event is Event.BROKE:
        broken += 1
        if broken >= MAX_BROKEN:
            event, reason = Event.FAILED, f"{reason} ({broken} attempts in a row were lost without further progress)"
    try:
        state = next_state(job.state, event)
    except ConflictError as error:
        raise ConflictError(f"job {job.id}: {error}") from None
    begins = event is Event.PICKED
    return msgspec.structs.replace(
        job,
        state=state,
        reason=reason,
        attempt=job.attempt + begins,
        broken=broken,
        refused=job.refused + 1 if event is Event.REFUSED else job.refused if begins else 0,
        progress=1.0 if state is State.DONE else job.progress,
        reached=job.progress if begins else job.reached,
        workers=workers if begins else () if state is State.QUEUED else job.workers,
        since_s=now_s,
    )


def row_of(job: Job, waits: str = "") -> dict[str, Any]:
    """Return the row of a job in lists; ``waits`` is the reason why it does not start or resume."""
    submission = job.submission
    return {
        "job": job.id,
        "name": submission.name,
        "user": submission.user,
        "kind": submission.kind,
        "state": job.state.value,
        "progress": job.progress,
        "workers": submission.workers,
        "on": list(job.workers),
        "reason": waits or job.reason,
        "attempt": job.attempt,
        "priority": submission.priority,
        "after": list(submission.after),
        "since_s": job.since_s,
        "submitted_s": job.submitted_s,
    }
