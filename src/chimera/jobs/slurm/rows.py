"""Rows of jobs on Slurm, as `chimera jobs` lists them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, DataError, UnavailableError
from chimera.jobs.slurm import commands
from chimera.jobs.slurm.attempts import Attempts
from chimera.jobs.slurm.commands import QueueRow
from chimera.jobs.slurm.folder import Ended, Record, SlurmJobFolder
from chimera.jobs.slurm.states import Found, state_of, state_without_number, state_without_slurm
from chimera.jobs.slurm.updates import last_fraction
from chimera.jobs.store.records import Job, Submission, row_of
from chimera.jobs.store.states import ACTIVE, TERMINAL, State

POLL_S = 0.2
"""Interval between two reads of a job's files, in seconds."""
QUEUE_S = 2.0
"""Interval between two requests to Slurm's controller, in seconds."""
PATIENCE_S = 300.0
"""Time to follow a job while Slurm does not answer, in seconds; a controller may restart."""
Queue = Mapping[str, QueueRow] | str
"""Slurm's queue by number, or the reason why Slurm does not answer."""


def ask() -> Queue:
    """Return Slurm's queue, or the reason why Slurm does not answer."""
    try:
        return commands.queue()
    except (ConfigurationError, UnavailableError) as error:
        return str(error)


def row_in_list(home: SlurmJobFolder, queue: Queue) -> dict[str, Any]:
    """Return the row of a job; if a file of the job is damaged, a row with this reason, so that the other jobs are listed."""
    try:
        return row_of_job(home, queue)
    except DataError as error:
        time_s = home.path.stat().st_mtime
        unknown = Job(
            id=home.path.name, submission=Submission(name="unknown", user="unknown"), state=State.FAILED, reason=str(error),
            since_s=time_s, submitted_s=time_s,
        )  # fmt: skip
        return {**row_of(unknown), "slurm": ""}


def row_of_job(home: SlurmJobFolder, queue: Queue) -> dict[str, Any]:
    """Return the row of a job; ``slurm`` is Slurm's number. A final state is recorded in the folder.

    Raises
    ------
    DataError : a file of the job is damaged.
    """
    submission, record, attempts = home.submission(), confirmed(home, queue), home.attempts
    if record.ended is not None:
        found, since_s = Found(State(record.ended.state), record.ended.reason), record.ended.at_s
    else:
        found = found_state(home, record.slurm, attempts, queue, record.since_s)
        last = attempts.last
        began = found.state == State.RUNNING and last is not None and last.job == record.slurm
        since_s = last.at_s if began and last is not None else record.since_s
        if found.state in TERMINAL and found.certain:
            since_s = record_end(home, found, record.slurm).at_s
    listed = queue.get(record.slurm) if isinstance(queue, Mapping) else None
    job = Job(
        id=home.path.name,
        submission=submission,
        state=found.state,
        reason=found.reason,
        attempt=attempts.count,
        progress=1.0 if found.state == State.DONE else last_fraction(home.run, record.limits) or 0.0,
        workers=(listed.nodes,) if listed is not None and listed.nodes and found.state in ACTIVE else (),
        since_s=since_s,
        submitted_s=record.submitted_s,
    )
    return {**row_of(job), "slurm": record.slurm}


def confirmed(home: SlurmJobFolder, queue: Queue) -> Record:
    """Return the record of a job, with Slurm's number as soon as the queue or the lines of the script have it."""
    record, last = home.record(), home.attempts.last
    if record.slurm:
        return record
    number = "" if isinstance(queue, str) else commands.number_of(record.mark, queue)
    if not number and last is not None and last.job != record.earlier:
        number = last.job
    if number:
        record = msgspec.structs.replace(record, slurm=number)
        home.write_record(record)
    return record


def found_state(home: SlurmJobFolder, number: str, attempts: Attempts, queue: Queue, submitted_s: float = 0.0) -> Found:
    """Return the state of the job that has the number ``number`` in Slurm.

    Parameters
    ----------
    submitted_s : time of its submission, used while the number is empty.
    """
    cancelled = home.cancelled.exists()
    if not number:
        problem = queue if isinstance(queue, str) else ""
        return state_without_number(time.time() - submitted_s, problem, cancelled=cancelled)
    if isinstance(queue, str):
        return state_without_slurm(number, attempts, queue, cancelled=cancelled)
    row = queue.get(number)
    accounted = "" if row is not None or cancelled else commands.accounted_state(number)
    return state_of(number, attempts, row, cancelled=cancelled, error=home.last_error(), accounted=accounted)


def record_end(home: SlurmJobFolder, found: Found, number: str) -> Ended:
    """Record the final state of a job with the current time, or with that of the end of its script.

    Parameters
    ----------
    number : Slurm's number of the job that is in this state. If the job was submitted again meanwhile, nothing is recorded.
    """
    last = home.attempts.last
    wrote_end = last is not None and last.kind == "end" and last.job == number
    ended = Ended(found.state.value, found.reason, last.at_s if wrote_end and last is not None else time.time())
    record = home.record()
    if record.slurm == number:
        home.write_record(msgspec.structs.replace(record, ended=ended))
    return ended
