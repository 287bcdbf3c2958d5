"""``chimera compare``: run an experiment over a grid of settings and compare the results."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.cluster import Slurm
from chimera.cli.train import Json, Quiet
from chimera.core.stop_signals import exit_code_of_stop, reason_of_stop, stop_of

if TYPE_CHECKING:
    from chimera.training.comparison.running import CellRunner
    from chimera.training.experiment.experiment import Experiment


def compare(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,...",
            help="Run with each of these values, e.g. codec=identity,top-k:ratio=0.01 or train.batch_size=16,32."
            " Repeatable: every combination is run.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the file in all runs. Repeatable."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help="Run N cells at a time; default: one per core on the engine simulated, else 1, since runs in real time slow"
            " each other.",
        ),
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option("--repeat", metavar="N|SEED,...", help="Run each cell with N seeds, or with these seeds."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR|URL",
            help="Write the comparison to this folder, or to an object store, e.g. s3://bucket/grid; default: a new folder"
            " below runs/.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip finished runs and resume unfinished ones.")] = False,
    slurm: Slurm = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of settings; write a table, an HTML page and a folder for each run."""
    from chimera.training.experiment.experiment import Experiment

    command = ["chimera", "compare", str(file)]
    command += [word for text in vary or [] for word in ("--vary", text)]
    command += [word for text in settings or [] for word in ("--set", text)]
    command += ["--repeat", repeat] if repeat is not None else []
    command += ["--jobs", str(jobs)] if jobs is not None else []
    command += ["--slurm", slurm] if slurm is not None else []
    run_grid(
        Experiment.load(file).with_settings(settings or []),
        vary or [],
        jobs=jobs,
        repeat=repeat,
        out=out,
        resume=resume,
        as_json=as_json,
        quiet=quiet,
        command=command,
        runner=None if slurm is None else _on_slurm(slurm, file, jobs),
    )


def run_grid(
    experiment: Experiment,
    vary: list[str],
    *,
    jobs: int | None,
    repeat: str | None,
    out: str | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    command: list[str],
    write_files: Callable[[Path], None] | None = None,
    runner: CellRunner | None = None,
) -> None:
    """Run the grid and show its progress; ``command`` is the command line that starts it again.

    ``write_files`` writes further files to the folder of each finished run. ``runner`` runs the cells on Slurm; default: on
    this machine.
    """
    from chimera.cli.grid_display import GridDisplay
    from chimera.core.errors import ConfigurationError
    from chimera.training.artifacts.location import folder_of
    from chimera.training.comparison.execution import compare as run_comparison

    if out is not None and write_files is not None and folder_of(out) is None:
        raise ConfigurationError(f"{out} is not on this machine: several numbers of learners need a folder here")

    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        with GridDisplay.of(quiet=quiet) as display:
            comparison = run_comparison(
                experiment,
                vary,
                out=out,
                jobs=jobs,
                repeat=None if repeat is None else _seeds(repeat),
                resume=resume,
                callbacks=[display],
                runner=runner,
            )
        for run in comparison.runs:
            if write_files is not None and run["state"] == "finished":
                write_files(comparison.folder / run["folder"])
        display.finish(comparison)
    if as_json:
        import msgspec

        answers.write(msgspec.json.encode(comparison.plain()).decode() + "\n")
        answers.flush()
    if comparison.interrupted:
        again = shlex.join([*command, "--out", str(comparison.location), "--resume"])
        stop = stop_of(comparison.signal or signal.SIGINT)
        if runner is None:
            typer.echo(f"{reason_of_stop(stop)}; unfinished runs have their checkpoints\nto resume: {again}", err=True)
        else:
            typer.echo(f"the unfinished runs continue on Slurm\nto wait for them again: {again}", err=True)
        raise typer.Exit(exit_code_of_stop(stop))
    failed = [run for run in comparison.runs if run["state"] == "failed"]
    for run in failed:
        seed = f", seed {run['seed']}" if "seed" in run else ""
        typer.echo(f"error: the run {run['cell']}{seed} failed: {run['error']}", err=True)
    if failed:
        raise typer.Exit(1)


def _on_slurm(options: str, file: Path, jobs: int | None) -> CellRunner:
    from chimera.core.errors import ConfigurationError
    from chimera.jobs.slurm.commands import require_slurm
    from chimera.jobs.slurm.grid import SlurmCells
    from chimera.jobs.slurm.options import read_options

    if jobs is not None:
        raise ConfigurationError("--jobs limits runs on this machine: on Slurm, use --slurm array_limit=N")
    require_slurm()
    return SlurmCells(read_options(options), file.resolve().parent)


def _seeds(repeat: str) -> int | list[int]:
    from chimera.core.errors import ConfigurationError

    parts = [part.strip() for part in repeat.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigurationError(f"--repeat {repeat}: give a number of seeds, or a list of seeds separated by commas")
    numbers = [int(part) for part in parts]
    return numbers if len(numbers) > 1 else numbers[0]
