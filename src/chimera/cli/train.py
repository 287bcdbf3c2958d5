"""``chimera train``: run an experiment file."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from chimera.core.stop_signals import exit_code_of_stop, reason_of_stop

if TYPE_CHECKING:
    from chimera.training.experiment.experiment import Experiment
    from chimera.training.progress.callback import Callback, Progress
    from chimera.training.trainer import Trainer
    from chimera.web.live.server import LivePage

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="DIR|URL",
        help="Write the run to this folder, or to an object store, e.g. s3://bucket/run; default: a new folder below runs/.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint of this run.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout at the end; all other output goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show neither progress nor results.")]
Page = Annotated[
    bool,
    typer.Option("--page", help="Serve a page on 127.0.0.1 that shows the run while it runs; see 'chimera watch'."),
]


def train(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="Run on this engine instead of that of the file; see 'chimera list engines'.",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers", metavar="N|URL,...", help="Set the number of workers; for the engine http, their URLs."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a value of the file, e.g. strategy.shards=2. Repeatable."
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="FAULT", help="Inject a fault, e.g. 'kill worker 2 at step 50'. Repeatable."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            metavar="NAME",
            help="Record the run in this tracker: tensorboard, mlflow, wandb or trackio. Repeatable.",
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    quiet: Quiet = False,
    page: Page = False,
) -> None:
    """Run an experiment file; write the model, the metrics and a report."""
    from chimera.training.experiment.experiment import Experiment

    experiment = Experiment.load(file)
    command = ["chimera", "train", str(file)]
    if engine is not None:
        experiment = experiment.with_table("engine", engine)
        command += ["--engine", engine]
    if workers is not None:
        experiment = experiment.with_workers(workers)
        command += ["--workers", workers]
    experiment = experiment.with_settings(settings or [])
    for setting in settings or []:
        command += ["--set", setting]
    if track:
        experiment = experiment.with_value(["train", "track"], track, f"--track {' '.join(track)}")
        command += [word for name in track for word in ("--track", name)]
    if faults:
        experiment = experiment.with_faults(faults)
        command += [word for fault in faults for word in ("--fault", fault)]
    if page:
        command.append("--page")
    run_experiment(experiment, out=out, resume=resume, as_json=as_json, quiet=quiet, page=page, command=command)


def run_experiment(
    experiment: Experiment,
    *,
    out: str | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    command: list[str],
    page: bool = False,
    file_writer: Callable[[Callable[[], Path]], Callback] | None = None,
) -> None:
    """Run the experiment and show its progress; ``command`` is the command line that starts it again.

    ``page`` serves a page during the run; ``file_writer`` makes a callback that writes further files to the folder of the run,
    which its argument returns.
    """
    from chimera.cli.display import Display, title_of

    with _answers(as_json) as answers:
        display = Display.of(title_of(experiment), quiet=quiet)
        trainer = experiment.trainer(callbacks=[display], out=out, resume=resume)
        if file_writer is not None:
            trainer.callbacks.append(file_writer(lambda: trainer.run_dir))
        try:
            with page_of(trainer, is_fixed=resume or out is not None) if page else contextlib.nullcontext(), display:
                run = trainer.fit()
        except KeyboardInterrupt as error:
            again = shlex.join([*command, "--out", str(trainer.location), "--resume"])
            _report_interruption(trainer.location, reason_of_stop(error), again)
            raise typer.Exit(exit_code_of_stop(error)) from None
        display.finish(run.summary(), _report_of(run.location))
        if as_json:
            answers.write(_json(run.summary()) + "\n")
            answers.flush()


@contextlib.contextmanager
def page_of(trainer: Trainer, *, is_fixed: bool) -> Iterator[LivePage]:
    """Serve a page of a run within the context.

    Unless its folder ``is_fixed``, another run may begin in it first, and this one takes the next number. The page then follows
    no folder until training starts.
    """
    from chimera.cli.watch import served
    from chimera.training.progress.callback import Callback
    from chimera.web.live.server import Followed, LivePage

    chosen = trainer.run_dir
    page = LivePage([Followed(chosen.name, chosen if is_fixed else chosen / "not started")])

    class FollowsOwn(Callback):
        def on_start(self, progress: Progress) -> None:  # noqa: ARG002
            page.follow([Followed(trainer.run_dir.name, trainer.run_dir)])

    trainer.callbacks.append(FollowsOwn())
    with served(page):
        yield page


@contextlib.contextmanager
def _answers(alone: bool) -> Iterator[TextIO]:
    """Yield stdout. With ``alone``, redirect all other output of this process and its children to stderr meanwhile."""
    if not alone:
        yield sys.stdout
        return
    stdout = sys.stdout
    try:
        descriptor = stdout.fileno()
    except (io.UnsupportedOperation, ValueError):  # stdout is an object in memory, which children do not inherit
        with contextlib.redirect_stdout(sys.stderr):
            yield stdout
        return
    stdout.flush()
    saved_descriptor = os.dup(descriptor)
    os.dup2(sys.stderr.fileno(), descriptor)
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            os.fdopen(os.dup(saved_descriptor), "w", encoding="utf-8") as answers,
        ):
            yield answers
    finally:
        os.dup2(saved_descriptor, descriptor)
        os.close(saved_descriptor)


def _report_interruption(location: Path | str, reason: str, again: str) -> None:
    from chimera.training.artifacts.checkpoint import Checkpoints
    from chimera.training.artifacts.location import path_in_run

    checkpoints = Checkpoints(f"{location}/checkpoints").paths()
    if checkpoints:
        last = checkpoints[-1]  # of an object store, this lacks the scheme
        shown = path_in_run(location, f"checkpoints/{Path(last).name}") if isinstance(location, str) else last
        typer.echo(f"{reason}; the last checkpoint is {shown}\nto resume: {again}", err=True)
    else:
        typer.echo(f"{reason} before the first checkpoint", err=True)


def _report_of(location: Path | str) -> Path | str:
    from chimera.training.artifacts.location import path_in_run

    path = path_in_run(location, "report.html")
    if isinstance(path, str) or path.exists():
        return path
    from chimera.core.errors import ChimeraError
    from chimera.report.html import write_report

    try:
        return write_report(path.parent)
    except (ChimeraError, OSError) as error:  # the run itself succeeded, and its files are complete
        typer.echo(f"no report: {error}", err=True)
        return path.parent


def _json(summary: dict[str, Any]) -> str:
    import msgspec

    def plain(value: Any) -> Any:  # NumPy scalars and paths
        return value.item() if hasattr(value, "item") else str(value)

    return msgspec.json.encode(summary, enc_hook=plain).decode()
