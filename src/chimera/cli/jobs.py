"""``chimera submit`` and related commands: jobs that run on a cluster in the background."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera.cli.cluster import HERE, Json, Slurm, Where
from chimera.cli.rows import Shown, line, printed, table

if TYPE_CHECKING:
    from chimera.cli.display import Display
    from chimera.jobs.client.protocol import JobClient, JobReader
    from chimera.report.text_table import TextTable

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's number.")]


_COLUMNS = (
    Shown("job", 0, is_number=True),
    Shown("name", 3, least=16),
    Shown("user", 6),
    Shown("state", 1),
    Shown("progress", 2, is_number=True),
    Shown("workers", 4, is_number=True),
    Shown("since", 5),
    Shown("reason", 7, long=True),
)


def submit(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, metavar="N", help="Use N workers; default: that of the file.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Set the name of the job.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the progress of the job until it ends or Ctrl-C.")
    ] = False,
    after: Annotated[
        list[str] | None, typer.Option("--after", metavar="JOB", help="Start after this job is done. Repeatable.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="P", help="Run jobs of higher priority first.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a value of the file, as for 'chimera train'. Repeatable."
        ),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", metavar="PATH", help="Send this file or folder to the cluster, too. Repeatable."),
    ] = None,
    slurm: Slurm = None,
    as_json: Json = False,
    folder: Where = HERE,
) -> None:
    """Submit an experiment and the code next to it to the cluster, and print the number of the job at once."""
    from chimera.jobs.client.handle import submit as submit_job

    job = submit_job(
        file, workers=workers, name=name, after=after or [], priority=priority, settings=settings or [],
        include=include or [], cluster=folder, slurm=slurm,
    )  # fmt: skip
    typer.echo(line({"job": job.id}) if as_json else f"job {job.id}")
    if follow:
        _follow(_client(folder), job.id, folder, as_json=as_json, from_start=True)


def jobs(as_json: Json = False, folder: Where = HERE) -> None:
    """List all jobs with state, progress and workers; also while the cluster is down."""
    rows = _reader(folder).jobs()
    if as_json:
        typer.echo(line(rows))
    else:
        printed(jobs_table(rows))


def follow(
    job: Job,
    now: Annotated[bool, typer.Option("--now", help="Show only new output, not that from the start.")] = False,
    as_json: Json = False,
    folder: Where = HERE,
) -> None:
    """Show the output and the progress of a job until it ends. Ctrl-C does not stop the job."""
    _follow(_client(folder), job, folder, as_json=as_json, from_start=not now)


def fetch(
    job: Job,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Write to this folder; default: runs/job-JOB.")
    ] = None,
    max_gib: Annotated[
        int, typer.Option("--max-gib", metavar="N", min=0, help="Refuse a run of more than N GiB in all.")
    ] = 64,
    as_json: Json = False,
    folder: Where = HERE,
) -> None:
    """Download the folder of a job's run: the logs, metrics, trace, weights and report that exist."""
    from chimera.jobs.client.handle import fetch_run

    reader = _reader(folder)
    row = reader.job(job)
    place = fetch_run(reader, job, out, max_gib << 30)
    typer.echo(line({"job": job, "folder": str(place), "state": row["state"]}) if as_json else str(place))


def cancel(job: Job, as_json: Json = False, folder: Where = HERE) -> None:
    """Cancel a job. Its files are kept."""
    _client(folder).cancel(job)
    typer.echo(line({"job": job}) if as_json else f"job {job} is cancelled")


def retry(job: Job, as_json: Json = False, folder: Where = HERE) -> None:
    """Continue a job that failed or was cancelled from its checkpoint."""
    _client(folder).retry(job)
    typer.echo(line({"job": job}) if as_json else f"job {job} waits again")


def jobs_table(rows: Iterable[Mapping[str, Any]]) -> TextTable:
    """Return a table of these rows of jobs."""
    return table(map(_shown, rows), _COLUMNS)


def _reader(cluster: str) -> JobReader:
    """Return a reader of jobs; print a note if it reads the files of a cluster that is down."""
    from chimera.jobs.client.handle import reader_of
    from chimera.jobs.client.offline import OfflineJobs

    reader = reader_of(cluster)
    if isinstance(reader, OfflineJobs):
        typer.echo("the cluster is down; its files are read", err=True)
    return reader


def _client(cluster: str) -> JobClient:
    from chimera.jobs.client.handle import client_of

    return client_of(cluster)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["since_s"]))
    return {**row, "progress": f"{100 * row['progress']:.0f} %", "since": since}


def _follow(client: JobClient, job: str, cluster: str, *, as_json: bool, from_start: bool) -> None:
    """Show the messages of a job, and then the next commands; exit with 1 unless the job is done.

    Ctrl-C ends the display with exit code 130.
    """
    from chimera.cli.display import Display

    state, started, row = "", False, client.job(job)
    display = Display.of(f"job {job}: {row['name']}", quiet=as_json)
    at = "" if cluster == HERE else f" --folder {shlex.quote(cluster)}"
    try:
        with display:
            for update in client.follow(job, from_start=from_start):
                state = update["job"]["state"] if "job" in update else state
                started = (started or "told" in update) and state != "queued"
                if as_json:
                    typer.echo(line(update))
                else:
                    _show(update, display, started=started)
    except KeyboardInterrupt:
        typer.echo(f"job {job} continues; to follow it again: chimera follow {job}{at}", err=True)
        raise typer.Exit(130) from None
    if not as_json:
        again = "" if state == "done" else f"; to resume from its checkpoint: chimera retry {job}{at}"
        typer.echo(f"to get its files: chimera fetch {job}{at}{again}", err=True)
    if state != "done":
        raise typer.Exit(1)


def _waits_for(row: Mapping[str, Any], *, started: bool) -> str:
    """Return what a job waits for before its training begins; empty if it does not wait."""
    if row["state"] == "queued":
        return f"its turn: {row['reason']}" if row["reason"] else "its turn in the queue"
    if row["state"] == "starting":
        return f"{row['workers']} free workers"
    return "its driver, which loads the code" if row["state"] == "running" and not started else ""


def _show(update: Mapping[str, Any], display: Display, *, started: bool) -> None:
    import msgspec

    from chimera.training.progress.callback import Event, Progress

    if "job" in update:
        row = update["job"]
        display.show_line(f"job {row['job']} is {row['state']}" + (f": {row['reason']}" if row["reason"] else ""))
        if what := _waits_for(row, started=started):
            display.on_wait(what)
    elif "log" in update:
        display.show_line(update["log"])
    else:
        ((what, value),) = update["told"].items()
        if what == "wait":
            display.on_wait(value)
        elif what == "start":
            display.on_start(msgspec.convert(value, Progress))
        elif what == "progress":
            display.on_progress(msgspec.convert(value, Progress))
        elif what == "event":
            display.on_event(msgspec.convert(value, Event))
        else:
            display.finish(value, None)
