"""``chimera compare``: run an experiment over a grid of settings, and compare what came of it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.train import Json, Quiet

if TYPE_CHECKING:
    from chimera.training.experiment.experiment import Experiment


def compare(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,...",
            help="What varies: --vary codec=identity,top-k:ratio=0.01 or --vary train.batch_size=16,32. Repeatable: every"
            " combination is run.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the file for all runs. Repeatable."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help="Runs at a time; by default one a core on the engine simulated, and one by one in real time, where they would"
            " slow each other.",
        ),
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option("--repeat", metavar="N|SEED,...", help="Run each cell with so many seeds, or with these."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The folder of the comparison; a new one below runs/ if not given."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip runs that are finished, go on with those that were begun.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of settings, and leave a table, a page and the folder of each run."""
    from chimera.training.experiment.experiment import Experiment

    command = ["chimera", "compare", str(file)]
    command += [word for text in vary or [] for word in ("--vary", text)]
    command += [word for text in settings or [] for word in ("--set", text)]
    command += ["--repeat", repeat] if repeat is not None else []
    command += ["--jobs", str(jobs)] if jobs is not None else []
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
    )


def run_grid(
    experiment: Experiment,
    vary: list[str],
    *,
    jobs: int | None,
    repeat: str | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    command: list[str],
    leave: Callable[[Path], None] | None = None,
) -> None:
    """Run the grid and show it; ``command`` is what a person would type to start it again.

    ``leave`` leaves more in the folder of each run that is finished.
    """
    from chimera.cli.grid_display import GridDisplay
    from chimera.training.comparison.comparison import compare as run_comparison

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
            )
        for run in comparison.runs:
            if leave is not None and run["state"] == "finished":
                leave(comparison.folder / run["folder"])
        display.finish(comparison)
    if as_json:
        import msgspec

        answers.write(msgspec.json.encode(comparison.plain()).decode() + "\n")
        answers.flush()
    if comparison.interrupted:
        again = shlex.join([*command, "--out", str(comparison.folder), "--resume"])
        typer.echo(f"interrupted; what was begun has its checkpoints\nto go on: {again}", err=True)
        raise typer.Exit(130)
    failed = [run for run in comparison.runs if run["state"] == "failed"]
    for run in failed:
        seed = f", seed {run['seed']}" if "seed" in run else ""
        typer.echo(f"error: the run {run['cell']}{seed} failed: {run['error']}", err=True)
    if failed:
        raise typer.Exit(1)


def _seeds(repeat: str) -> int | list[int]:
    from chimera.core.errors import ConfigurationError

    parts = [part.strip() for part in repeat.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigurationError(f"--repeat {repeat}: give how many seeds, or the seeds between commas")
    numbers = [int(part) for part in parts]
    return numbers if len(numbers) > 1 else numbers[0]
