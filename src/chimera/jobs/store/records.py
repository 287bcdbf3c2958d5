"""What is known of a job: what was submitted, how it stands, what happened. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from chimera.core.errors import ConfigurationError, ConflictError
from chimera.jobs.store.states import UNDER_WAY, Event, State, following

MOST_BROKEN = 5
"""So many attempts in a row may break without having come further; then the job has failed."""
MOST_WORKERS = 100_000

Sha256: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A file by its content; ``size`` in bytes is known before anything is received."""

    sha256: Sha256
    size: Annotated[int, Meta(ge=0)]


class Function(Struct, frozen=True, forbid_unknown_fields=True):
    """A function to run on each worker.

    Attributes
    ----------
    file : of its source, a path in the manifest.
    name : its qualified name there.
    arguments : ``[positional, by keyword]`` as MessagePack; no pickle comes from a network.
    """

    file: str
    name: Name
    arguments: bytes = b"\x92\x90\x80"


class Submission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants to be run. It never changes.

    Attributes
    ----------
    name, user : what people call it, and who they are.
    kind : an experiment, as ``chimera train`` runs it, or a function.
    manifest : the files that travel with it, by the path that they get in the job's folder (`chimera.jobs.files.bundle`).
    experiment : the text of the experiment file, as it is.
    settings : changes of it, as of ``chimera train --set``, among them where files lie that are elsewhere here.
    function : what to run where it is a function.
    workers : how many it needs, all at once.
    priority : higher ones go first.
    after : ids of jobs that must be done before.
    requires : the modules that the code imports and that do not travel with it; every worker must have them.
    versions : of Chimera, Python and torch where it was submitted; those of the workers must be compatible.
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
        """Return it, if its parts go together.

        Raises
        ------
        ConfigurationError : they do not, or one is not of its type.
        """
        try:
            msgspec.convert(msgspec.to_builtins(self), Submission)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"the job {self.name!r} cannot be submitted: {error}") from error
        if (self.kind == "function") != (self.function is not None) or (self.kind == "experiment") != bool(
            self.experiment
        ):
            raise ConfigurationError(
                f"the job {self.name!r} is of kind {self.kind!r}: it needs that, and nothing of the other kind"
            )
        if self.function is not None and self.function.file not in self.manifest:
            raise ConfigurationError(
                f"the job {self.name!r} lacks the file {self.function.file!r} of its function in its manifest"
            )
        return self


class Job(Struct, frozen=True, kw_only=True):
    """A job as it stands.

    Attributes
    ----------
    id : its number as a text.
    reason : why it is where it is, for people; empty where all is as it should be.
    attempt : how often it was picked; what a message of an earlier attempt says is out of date.
    broken, refused : attempts that broke without having come further, and that no worker began, in a row.
    progress : the furthest that it came, 0 to 1.
    reached : its progress when this attempt began.
    workers : the names of those that it has, or had last.
    since_s : when it came into this state.
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
    def under_way(self) -> bool:
        """Whether it has an attempt, and workers."""
        return self.state in UNDER_WAY


class Happened(Struct, frozen=True):
    """One step of a job's history, as it stood afterwards."""

    job: str
    at_s: float
    event: Event | None  # None: it was submitted
    state: State
    attempt: int
    reason: str


class Use(Struct, frozen=True):
    """Workers that a user had; ``to_s`` is None while that lasts."""

    user: str
    workers: int
    from_s: float
    to_s: float | None


def advanced(job: Job, event: Event, *, now_s: float, reason: str = "", workers: tuple[str, ...] = ()) -> Job:
    """Return the job after an event; one that breaks once too often in a row has failed.

    Parameters
    ----------
    workers : the names of those that are to run it, where it is picked.

    Raises
    ------
    ConflictError : the event cannot happen to this job now.
    """
    broken = 0 if event is Event.RETRY or job.progress > job.reached else job.broken
    if event is Event.BROKE:
        broken += 1
        if broken >= MOST_BROKEN:
            event, reason = Event.FAILED, f"{reason} ({broken} attempts in a row broke without coming further)"
    try:
        state = following(job.state, event)
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
    """Return what is shown of a job; ``waits`` is why it does not begin or go on, if it does not."""
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
