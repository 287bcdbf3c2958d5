"""State of a job on Slurm, from Slurm's queue and from the files of its script. Free of I/O."""

from __future__ import annotations

from typing import NamedTuple

from chimera.jobs.slurm.attempts import Attempts
from chimera.jobs.slurm.commands import QueueRow
from chimera.jobs.store.states import State

_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
CONFIRM_S = 300.0
"""Time after a submission without an answer until Slurm has listed the job, or has not accepted it, in seconds."""
_KILLED = 137  # exit code of a shell for a process that SIGKILL ended
_ENDS = {
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "its deadline passed",
    "FAILED": "its script failed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "it needed more memory than Slurm gave it",
    "PREEMPTED": "it was preempted, and Slurm did not requeue it",
    "REVOKED": "Slurm revoked it",
    "TIMEOUT": "it reached its time limit",
}


class Found(NamedTuple):
    """A state with its reason; ``certain`` unless Slurm does not answer, or does not know the job."""

    state: State
    reason: str = ""
    certain: bool = True


def state_of(
    number: str, attempts: Attempts, row: QueueRow | None, *, cancelled: bool, error: str, accounted: str = ""
) -> Found:
    """Return the state of a job.

    Parameters
    ----------
    number : Slurm's number of the job.
    attempts : lines that the script has written.
    row : its row in Slurm's queue; None if the queue lists it no longer.
    cancelled : whether a user has cancelled it through Chimera.
    error : last error in the job's log; empty if there is none.
    accounted : its state by Slurm's accounting; empty if that is not known.
    """
    if cancelled:
        return Found(State.CANCELLED)
    last = attempts.last
    code = attempts.exit_code if last is not None and last.job == number else None
    if code == 0:
        return Found(State.DONE)
    state = row.state if row is not None else accounted
    if state in _WAITS:
        return Found(State.QUEUED, f"Slurm job {number} waits: {row.reason if row is not None else state}")
    if state == "COMPLETED":
        return Found(State.DONE)
    if state == "CANCELLED":
        return Found(State.CANCELLED)
    if state in _ENDS:
        return Found(State.FAILED, f"Slurm job {number}: {_reason(state, error, code)}")
    if row is not None:
        return Found(State.RUNNING, f"Slurm job {number} on {row.nodes}" if row.nodes else f"Slurm job {number}")
    if code is not None:
        return Found(State.FAILED, f"Slurm job {number}: {_reason('FAILED', error, code)}")
    reason = f"Slurm job {number} has ended without a result: Slurm does not list it any more"
    return Found(State.FAILED, reason, certain=False)  # this may be the login node of another cluster


def state_without_slurm(number: str, attempts: Attempts, problem: str, *, cancelled: bool) -> Found:
    """Return the last known state of a job, while Slurm does not answer because of ``problem``."""
    if cancelled:
        return Found(State.CANCELLED)
    last = attempts.last
    if last is None or last.job != number:
        return Found(State.QUEUED, problem, certain=False)
    if attempts.exit_code == 0:
        return Found(State.DONE)
    return Found(State.RUNNING, problem, certain=False)


def state_without_number(waited_s: float, problem: str, *, cancelled: bool) -> Found:
    """Return the state of a job whose number is not known: its submission was interrupted, or Slurm did not answer.

    Parameters
    ----------
    waited_s : time since the submission, in seconds.
    problem : reason why Slurm does not answer now; empty if it answers, and does not list the job.
    """
    if cancelled:
        return Found(State.CANCELLED)
    if problem or waited_s < CONFIRM_S:
        return Found(State.QUEUED, problem or "Slurm has not confirmed the submission yet", certain=False)
    return Found(State.FAILED, "Slurm has not accepted the job: its submission was interrupted", certain=False)


def has_ended(row: QueueRow) -> bool:
    """Return whether no process of a job runs, and it will not run again."""
    return row.state in ("COMPLETED", "CANCELLED", *_ENDS)


def _reason(state: str, error: str, code: int | None) -> str:
    if state != "FAILED":
        return f"{_ENDS[state]}; a retry resumes from its checkpoint"
    if code == _KILLED and not error:
        return (
            "its process was killed (exit code 137), usually because the node had too little memory: request more "
            "(#SBATCH --mem), then run it again"
        )
    return error or (f"its script ended with exit code {code}" if code is not None else _ENDS[state])
