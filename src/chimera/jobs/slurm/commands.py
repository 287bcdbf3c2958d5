"""Calls of Slurm's commands: ``sbatch``, ``squeue``, ``scancel`` and ``sacct``."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from chimera.core.errors import ConfigurationError, RunError, UnavailableError
from chimera.core.private import UMASK
from chimera.web.folder import TOKEN

_TIMEOUT_S = 60.0
_NO_CONTROLLER = ("unable to contact slurm controller", "connection refused")
_NO_ANSWER = ("socket timed out", "i/o error", "zero bytes were transmitted")
_PREFIX = re.compile(r"^(?:sbatch|squeue|scancel|sacct|slurm_load_jobs): ?|\b(?:error|fatal): ?")
_KEPT_VARIABLES = {  # defaults of a user for options that the script does not set
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_GRES": "gres",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
}


class Unanswered(UnavailableError):  # noqa: N818 - the request, not the answer, has arrived
    """A command of Slurm had no answer; Slurm may have executed it."""


class QueueRow(Struct, frozen=True):
    """A job as ``squeue`` lists it, also some minutes after its end.

    Attributes
    ----------
    id : Slurm's number of the job, ``12`` or, of a task of an array, ``12_3``.
    state, reason : in Slurm's words.
    nodes : names of its nodes, in Slurm's short form.
    mark : the mark of its submission, see `new_mark`.
    """

    id: str
    state: str
    nodes: str
    reason: str
    mark: str = ""


def require_slurm() -> None:
    """Check that this machine has Slurm's commands.

    Raises
    ------
    ConfigurationError : a command is missing.
    """
    _path("sbatch")


def new_mark() -> str:
    """Return a mark for one submission. Slurm keeps it as the comment of the job, by which `number_of` finds the job."""
    return f"chimera-{secrets.token_hex(8)}"


def number_of(mark: str, queue: Mapping[str, QueueRow]) -> str:
    """Return Slurm's number of the job or array that was submitted with a mark; empty if the queue does not list it."""
    return next((row.id.partition("_")[0] for row in queue.values() if row.mark == mark), "")


def submit(script: Path, set_options: Sequence[str], mark: str, *, after: Sequence[str] = (), behind: str = "") -> str:
    """Submit a batch script and return Slurm's number of the job.

    Parameters
    ----------
    set_options : names of the options that the script sets; the user's variables for these are ignored.
    mark : mark of this submission.
    after : jobs that must have succeeded before. If one fails, Slurm cancels this job.
    behind : job that must have ended before; empty for none.

    Raises
    ------
    ConfigurationError : Slurm refuses the job, or is not installed here.
    UnavailableError : Slurm cannot be reached.
    Unanswered : Slurm may have accepted the job.
    """
    dependencies = [*(f"afterok:{job}" for job in after), *([f"afterany:{behind}"] if behind else [])]
    words = [f"--comment={mark}"]
    words += [f"--dependency={','.join(dependencies)}", "--kill-on-invalid-dep=yes"] if dependencies else []
    try:
        answer = _run("sbatch", "--parsable", *words, str(script), env=_environment(set_options))
    except RunError as error:
        if isinstance(error, UnavailableError):
            raise
        raise ConfigurationError(f"Slurm refuses the job: {error}") from error
    number = answer.strip().partition(";")[0]  # the name of the cluster may follow
    if not (number.isascii() and number.isdigit()):
        raise Unanswered(f"sbatch answers {answer.strip()[:200]!a}, which is not the number of a job")
    return number


def queue() -> dict[str, QueueRow]:
    """Return the jobs of this user by Slurm's number: all that have not ended, and those that ended some minutes ago.

    Raises
    ------
    ConfigurationError : Slurm is not installed here.
    UnavailableError : Slurm does not answer.
    """
    try:
        answer = _run("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%N|%r|%k")
    except RunError as error:
        raise UnavailableError(f"Slurm does not answer: {error}") from error
    rows = [QueueRow(*parts) for line in answer.splitlines() if len(parts := line.strip().split("|", 4)) == 5]
    return {row.id: row for row in rows}


def cancel(job: str) -> None:
    """End a job of Slurm, if it has not ended.

    Raises
    ------
    ConfigurationError : Slurm is not installed here.
    RunError : Slurm refuses it, or does not answer.
    """
    _run("scancel", job)


def accounted_state(job: str) -> str:
    """Return the state of an ended job from Slurm's accounting; empty if it has none, or does not know the job."""
    try:
        answer = _run("sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={job}")
    except (RunError, ConfigurationError):
        return ""
    return (answer.splitlines() or [""])[-1].partition(" ")[0]  # "CANCELLED by 1000"


def _run(program: str, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Return the output of a command; raises RunError with its message if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - a command of Slurm, no shell; the words were validated
            [_path(program), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_TIMEOUT_S, check=False, env=env, umask=UMASK,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unanswered(f"{program} has not answered for {_TIMEOUT_S:g} s") from error
    if done.returncode == 0:
        return done.stdout
    lines = [_PREFIX.sub("", line.strip()) for line in done.stderr.splitlines() if line.strip()]
    message = "; ".join(dict.fromkeys(lines))[:500] or f"{program} ended with exit code {done.returncode}"
    if done.returncode < 0 or any(sign in message.lower() for sign in _NO_ANSWER):
        raise Unanswered(message)
    if any(sign in message.lower() for sign in _NO_CONTROLLER):
        raise UnavailableError(message)
    raise RunError(message)


def _path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ConfigurationError(
            f"{program!r} was not found on {socket.gethostname()}: run this on a machine with Slurm's commands, such as the "
            "login node of the cluster"
        )
    return found


def _environment(set_options: Sequence[str]) -> dict[str, str]:
    """Return the environment of a job: that of this process, without the token of a cluster, with absolute import paths.

    ``sbatch`` prefers its variables to the options in the script. Only those remain whose option the script does not set.
    """
    kept = {name for name, option in _KEPT_VARIABLES.items() if option not in set_options}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != TOKEN and (not name.startswith("SBATCH_") or name in kept)
    }
    if path := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep))
    return environment
