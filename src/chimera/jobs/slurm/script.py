"""Batch scripts: plain text that Slurm runs, and that a user can read, keep and submit again."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.jobs.slurm.options import SlurmOptions, time_text

RUN = "experiment.toml"
"""Name of the experiment file that the script runs, in the folder of the job."""
STOPPED = 143
"""Exit code of ``chimera train`` after SIGUSR1 or SIGTERM, when it has written a checkpoint."""
MAX_STALLED = 5
"""A job is not requeued after this many attempts in a row without a new checkpoint."""
BEGIN = "attempt of Slurm job "
"""Begin of the line in the log with which each attempt begins."""
_PATH = re.compile(r"[\w./,:=@+~ -]+")
_NOT_IN_NAMES = re.compile(r"[^\w.+-]+", re.ASCII)
_MAX_NAME_CHARACTERS = 60

_BODY = """\
umask 077
cd "$home/code" || exit 1
note() { echo "$1 $id ${SLURM_RESTART_COUNT:-0} $(date +%s) $2" >>"$home/attempts"; }
newest() { ls "$run/checkpoints" 2>/dev/null | tail -n 1; }
[ ! -e "$home/cancelled" ] || exit @STOPPED@
note start "$SLURM_JOB_NODELIST"
echo "@BEGIN@$id on $SLURM_JOB_NODELIST"
before=$(newest)

# The signal before the time limit reaches only this script, which forwards it. Slurm sends SIGTERM to all processes itself.
warned= ended= caught=
trap 'warned=1 caught=1' USR1
trap 'ended=1 caught=1' TERM
@TRAIN@ &
train=$!
trap 'warned=1 caught=1; kill -USR1 "$train"' USR1
[ -z "$warned" ] || kill -USR1 "$train"
code=
until [ -n "$code" ]; do # a signal ends 'wait' early
    caught=
    wait "$train"
    result=$?
    [ -n "$caught" ] || code=$result
done
if [ "$code" -lt 0 ]; then # bash has lost the exit code: a signal came when the training ended
    code=@STOPPED@
    [ ! -e "$run/summary.json" ] || code=0
fi
[ "$code" -ne 0 ] || [ -e "$run/summary.json" ] || code=@STOPPED@ # srun may end with 0 after SIGTERM
note end "$code"

# After SIGTERM the job was cancelled, or Slurm requeues it by itself. 138 is the end by a signal before training began.
[ -n "$warned" ] && [ -z "$ended" ] && [ ! -e "$home/cancelled" ] || exit "$code"
[ "$code" -eq @STOPPED@ ] || [ "$code" -eq 138 ] || exit "$code"
if [ "$(newest)" = "$before" ]; then echo "$id" >>"$home/stalled"; else rm -f "$home/stalled"; fi
if [ -e "$home/stalled" ] && [ "$(wc -l <"$home/stalled")" -ge @MAX_STALLED@ ]; then
    echo "error: no new checkpoint in @MAX_STALLED@ attempts: use a longer time limit, or more frequent checkpoints" >&2
    exit "$code"
fi
scontrol requeue "$id" || echo "error: Slurm does not requeue the job; submitted again, it resumes from its checkpoint" >&2
exit "$code"
"""


@dataclass(frozen=True)
class Launch:
    """The start of the processes of a run.

    Attributes
    ----------
    mpi : whether ``srun`` starts MPI ranks; otherwise the script starts one process.
    ranks : number of these processes.
    cpus : processors of each.
    """

    mpi: bool
    ranks: int
    cpus: int


def launch_of(tables: Mapping[str, Any], workers: int, options: SlurmOptions) -> Launch:
    """Return how the run of an experiment is started.

    Parameters
    ----------
    tables : tables of the experiment.
    workers : its number of workers.

    Raises
    ------
    ConfigurationError : its engine cannot use several nodes or tasks.
    """
    engine = tables.get("engine", {}).get("name", "")
    if engine == "mpi" or (not engine and options.nodes > 1):
        ranks = options.tasks or max(workers + 1, options.nodes)
        if ranks < options.nodes:
            raise ConfigurationError(
                f"--slurm: tasks must be at least the number of nodes, {options.nodes}, not {ranks}"
            )
        return Launch(mpi=True, ranks=ranks, cpus=options.cpus or 1)
    engine = engine or "local"
    for key, value, most in (("nodes", options.nodes, 1), ("tasks", options.tasks or 1, 1)):
        if value > most:
            raise ConfigurationError(
                f"--slurm: {key}={value} needs the engine mpi, and the experiment has engine {engine!r}, which Slurm starts on "
                "one node as one task: add --set engine=mpi"
            )
    return Launch(mpi=False, ranks=1, cpus=options.cpus or (workers if engine == "local" else 1))


def job_script(home: Path, name: str, options: SlurmOptions, launch: Launch) -> str:
    """Return the script of a job.

    Parameters
    ----------
    home : folder of the job, with its experiment and its code.

    Raises
    ------
    ConfigurationError : Slurm cannot read the path of the folder from a script.
    """
    if options.array_limit is not None:
        raise ConfigurationError("--slurm: array_limit is for the runs of 'chimera compare', and this is one job")
    head = _head(name, options, launch, output=home / "log", folder=home)
    places = [f"home={_quoted(home)}", 'run="$home/run"', "id=$SLURM_JOB_ID"]
    return _script(head, places, launch)


def array_script(
    cells_folder: Path, runs: Path, cells: Sequence[str], name: str, options: SlurmOptions, launch: Launch
) -> str:
    """Return the script of an array of jobs, one for each cell of a comparison.

    Parameters
    ----------
    cells_folder, runs : folders that hold a folder for each cell, with its experiment and code, and with its run.

    Raises
    ------
    ConfigurationError : Slurm cannot read the path of a folder from a script.
    """
    limit = f"%{options.array_limit}" if options.array_limit else ""
    array = [("array", f"0-{len(cells) - 1}{limit}")]
    head = _head(name, options, launch, output=cells_folder / "%A_%a.log", folder=cells_folder, more=array)
    places = [
        f"cells=({' '.join(map(shlex.quote, cells))})",
        "cell=${cells[$SLURM_ARRAY_TASK_ID]}",
        f'home={_quoted(cells_folder)}"/$cell"',
        f'run={_quoted(runs)}"/$cell"',
        "id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        'exec >>"$home/log" 2>&1',
    ]
    return _script(head, places, launch)


def options_in(script: str) -> list[str]:
    """Return the names of the options of ``sbatch`` that a script sets."""
    return re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE)


def _head(
    name: str,
    options: SlurmOptions,
    launch: Launch,
    *,
    output: Path,
    folder: Path,
    more: Sequence[tuple[str, str]] = (),
) -> list[tuple[str, str]]:
    """Return the options of ``sbatch``."""
    requested = [
        ("partition", options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("constraint", f'"{options.constraint}"' if options.constraint else ""),
        ("time", time_text(options.time_s) if options.time_s is not None else ""),
        ("nodes", str(options.nodes)),
        ("ntasks", str(launch.ranks)),
        ("cpus-per-task", str(launch.cpus)),
        ("mem", options.memory),
        ("gres", f"gpu:{options.gpus}" if options.gpus else ""),
        *more,
    ]
    _check_path(folder)
    return [
        ("job-name", _job_name(name)),
        *((option, value) for option, value in requested if value),
        ("chdir", f'"{folder}"'),
        ("output", f'"{output}"'),
        ("open-mode", "append"),
        ("requeue", ""),
        ("signal", f"B:USR1@{options.lead}"),
    ]


def _script(head: Sequence[tuple[str, str]], places: Sequence[str], launch: Launch) -> str:
    lines = ["#!/bin/bash", *(f"#SBATCH --{option}={value}".removesuffix("=") for option, value in head)]
    lines += [
        "",
        "# Run an experiment of Chimera. Submitted again with sbatch, it resumes from its last checkpoint.",
        *places,
    ]
    body = _BODY.replace("@TRAIN@", _train(launch)).replace("@MAX_STALLED@", str(MAX_STALLED)).replace("@BEGIN@", BEGIN)
    return "\n".join(lines) + "\n" + body.replace("@STOPPED@", str(STOPPED))


def _train(launch: Launch) -> str:
    """Return the command that trains."""
    train = f'{shlex.quote(sys.executable)} -m chimera train "$home/{RUN}" --out "$run" --resume --quiet'
    if not launch.mpi:
        return train
    size = f"--ntasks={launch.ranks} --cpus-per-task={launch.cpus}"  # srun does not inherit the second one
    return f"srun {size} --kill-on-bad-exit=1 {train} --engine mpi"


def _job_name(name: str) -> str:
    """Return a name of a job without characters that have a meaning for Slurm or a shell."""
    return _NOT_IN_NAMES.sub("-", name).strip("-.")[:_MAX_NAME_CHARACTERS] or "chimera"


def _quoted(path: Path) -> str:
    _check_path(path)
    return shlex.quote(str(path))


def _check_path(path: Path) -> None:
    if not _PATH.fullmatch(str(path)):
        raise ConfigurationError(
            f"the path {str(path)!a} has a character that a batch script of Slurm cannot contain: use a folder whose name has "
            "letters, digits, spaces and . , : = @ + ~ - _ only"
        )
