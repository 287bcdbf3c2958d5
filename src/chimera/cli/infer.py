"""``chimera infer``: commands of a cluster that serves queries with several models."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.infer_cluster import bounds, down, up
from chimera.cli.infer_options import (
    HERE,
    BatchSize,
    BatchTimeout,
    Cluster,
    Job,
    Json,
    MaxWorkers,
    Model,
    Watch,
    Weight,
    Worker,
    connected,
    limit_of,
    size_of,
)
from chimera.cli.infer_serving import ask, serve, unserve
from chimera.cli.infer_views import show
from chimera.cli.infer_worker import worker
from chimera.cli.rows import line
from chimera.core.errors import ConfigurationError
from chimera.core.printable import printable

if TYPE_CHECKING:
    from chimera.cli.infer_views import Reader

app = typer.Typer(help="Serve several models on one cluster that they share fairly.", no_args_is_help=True)

app.command("up")(up)
app.command("down")(down)
app.command("worker")(worker)


@app.command("submit")
def submit(
    model: Model,
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="WHAT", help="Read queries from files, a glob, a folder or a URL.")
    ],
    batch_size: BatchSize = "auto",
    weight: Weight = 1.0,
    max_workers: MaxWorkers = None,
    batch_timeout: BatchTimeout = None,
    max_error_rate: Annotated[
        float,
        typer.Option(
            "--max-error-rate", min=0, max=1, metavar="R", help="Let the job fail if more than R of its queries fail."
        ),
    ] = 1.0,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Set the name of the job.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Continue the interrupted submission with this key.")
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the queries of large files, too; else the files must not change.")
    ] = False,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Submit a job, and print its number at once."""
    from chimera.cli.infer_progress import progress_bar
    from chimera.inference.inputs import queries
    from chimera.inference.models import check_query, read

    client = connected(cluster)
    size = size_of(batch_size)
    key = uuid.uuid4().hex if key is None else key
    table, submitted = read(model), queries(inputs)
    check_query(table, submitted.first)
    try:
        with progress_bar(submitted.total_bytes) as on_progress:
            job = client.submit(
                table, submitted, key=key, on_progress=on_progress, copy=copy, name=name, weight=weight, batch_size=size,
                max_workers=max_workers, max_error_rate=max_error_rate, **limit_of(batch_timeout),
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"interrupted: to continue, repeat the command with --key {key}", err=True)
        raise
    typer.echo(line({"job": job}) if as_json else f"job {job}")


app.command("serve")(serve)
app.command("unserve")(unserve)
app.command("ask")(ask)


@app.command("list")
def list_jobs(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """List all jobs, also while the cluster is down."""
    with _reader(cluster) as reader:
        show(reader, "jobs", as_json=as_json, watch=watch)


@app.command("rate")
def rate(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show each job's query rate over the last 10 s, and how many queries it has processed."""
    show(connected(cluster), "rate", as_json=as_json, watch=watch)


@app.command("stats")
def stats(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show the processing time per query of each job: mean, standard deviation and percentiles."""
    show(connected(cluster), "stats", as_json=as_json, watch=watch)


@app.command("workers")
def workers(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show the job and the state of each worker: free, loading, hung, lost, ..."""
    show(connected(cluster), "workers", as_json=as_json, watch=watch)


@app.command("scale")
def scale(
    workers: Annotated[str, typer.Argument(metavar="N|MIN:MAX", help="The number of workers, or its bounds.")],
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Set the number of workers of a running cluster. A worker that leaves finishes its batches first."""
    least, most = bounds(workers, "the number of workers")
    connected(cluster).scale(least, most)
    typer.echo(line({"workers": least, "most": most}) if as_json else f"the cluster will have {workers} workers")


@app.command("members")
def members(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show every process of the cluster."""
    show(connected(cluster), "members", as_json=as_json, watch=watch)


@app.command("set")
def change(
    job: Job,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", metavar="N|auto", help="Put at most N queries in a batch.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="W", help="Set the weight of the job's share of the query rate.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max-workers", min=1, metavar="N", help="Use at most N workers at once.")
    ] = None,
    batch_timeout: BatchTimeout = None,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Change options of a job, from its next batch on."""
    given = {
        "batch_size": None if batch_size is None else size_of(batch_size),
        "weight": weight,
        "max_workers": max_workers,
        **limit_of(batch_timeout),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise ConfigurationError("nothing to change: give --batch-size, --weight, --max-workers or --batch-timeout-s")
    number = connected(cluster).change(job, **changes)
    typer.echo(line({"job": number, **changes}) if as_json else f"job {number} is changed")


@app.command("cancel")
def cancel(job: Job, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Cancel a job. Its results so far are kept."""
    number = connected(cluster).cancel(job)
    typer.echo(line({"job": number}) if as_json else f"job {number} is cancelled")


@app.command("drain")
def drain(worker: Worker, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Give a worker no more batches; it finishes those that it has. `chimera infer restart` ends this."""
    row = connected(cluster).drain(worker)
    typer.echo(line(row) if as_json else f"{row['worker']} is {row['state']}")


@app.command("restart")
def restart(worker: Worker, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Restart a worker, also if it hangs. Other workers get its batches."""
    row = connected(cluster).restart(worker)
    typer.echo(line(row) if as_json else f"{row['worker']} is {row['state']}")


@app.command("wait")
def wait(
    job: Job,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="S", help="Wait at most S seconds; default: no limit.")
    ] = None,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Wait until a job has ended; exit with 1 if it failed or was cancelled, or if the timeout expired."""
    from chimera.inference.client import outcome

    row = connected(cluster).wait(job, timeout_s)
    typer.echo(line(row) if as_json else printable(outcome(row)))
    if row["state"] != "done":
        raise typer.Exit(1)


@app.command("results")
def results(
    job: Job,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write a .jsonl or .parquet file; default: stdout."),
    ] = None,
    as_json: Json = False,  # noqa: ARG001 - on stdout they are JSON lines anyway
    cluster: Cluster = HERE,
) -> None:
    """Print the results so far in input order, one JSON line each, also while the cluster is down."""
    from chimera.inference.results import check_path, save

    if out is not None:
        check_path(out)
    with _reader(cluster) as reader:
        rows = reader.results(job)
        if out is None:
            for row in rows:
                typer.echo(line(row))
        else:
            typer.echo(f"{save(rows, out)} results in {out}")


@contextmanager
def _reader(cluster: str) -> Iterator[Reader]:
    """Yield a client of a running cluster, or the journal of one that is down."""
    from chimera.inference.cluster_folder import ClusterFolder, is_address

    folder = None if is_address(cluster) else ClusterFolder(Path(cluster))
    if folder is None or folder.lock_holder() is not None or not folder.journal.is_file():
        yield connected(cluster)
        return
    from chimera.inference.stored import StoredJobs

    typer.echo(f"the cluster in {folder.path} is down: its journal is read", err=True)
    with StoredJobs(folder) as jobs:
        yield jobs
