"""``chimera infer``: commands of a cluster that serves queries with several models."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.infer_cluster import HERE, Cluster, down, up
from chimera.cli.infer_views import show
from chimera.cli.rows import line
from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from chimera.inference.client import Client

app = typer.Typer(help="Serve several models on one cluster that they share fairly.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh the view until Ctrl-C.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's number or name.")]


app.command("up")(up)
app.command("down")(down)


@app.command("submit")
def submit(
    model: Annotated[
        Path, typer.Option("--model", metavar="FILE", help="Use the model that this TOML file describes.")
    ],
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="WHAT", help="Read queries from files, a glob, a folder or a URL.")
    ],
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="N|auto", help="Put N queries in a batch.")
    ] = "auto",
    weight: Annotated[
        float, typer.Option("--weight", metavar="W", help="Set the weight of its share of the query rate.")
    ] = 1.0,
    max_workers: Annotated[
        int | None,
        typer.Option("--max-workers", min=1, metavar="N", help="Use at most N workers at once; default: no limit."),
    ] = None,
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
    from chimera.inference.models import read

    client = _client(cluster)
    size = _size(batch_size)
    key = uuid.uuid4().hex if key is None else key
    submitted = queries(inputs)
    try:
        with progress_bar(submitted.total_bytes) as on_progress:
            job = client.submit(
                read(model), submitted, key=key, on_progress=on_progress, copy=copy, name=name, weight=weight, batch_size=size,
                max_workers=max_workers,
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"interrupted: to continue, repeat the command with --key {key}", err=True)
        raise
    typer.echo(line({"job": job}) if as_json else f"job {job}")


@app.command("serve")
def serve(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name in its route: POST /v1/infer/NAME.")],
    model: Annotated[
        Path, typer.Option("--model", metavar="FILE", help="Use the model that this TOML file describes.")
    ],
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="N|auto", help="Put at most N queries in a batch.")
    ] = "auto",
    weight: Annotated[
        float, typer.Option("--weight", metavar="W", help="Set the weight of its share of the query rate.")
    ] = 1.0,
    max_workers: Annotated[
        int | None,
        typer.Option("--max-workers", min=1, metavar="N", help="Use at most N workers at once; default: no limit."),
    ] = None,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Serve a model that answers single queries; `chimera infer list` shows it as a job."""
    from chimera.inference.models import read

    size = _size(batch_size)
    job = _client(cluster).serve(name, read(model), weight=weight, batch_size=size, max_workers=max_workers)
    typer.echo(line({"job": job, "name": name}) if as_json else f"{name} is served, as job {job}")


@app.command("unserve")
def unserve(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a served model.")],
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Stop serving a model. Pending queries are still answered."""
    job = _client(cluster).unserve(name)
    typer.echo(line({"job": job, "name": name}) if as_json else f"{name} is served no more")


@app.command("ask")
def ask(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a served model.")],
    queries: Annotated[list[str], typer.Argument(metavar="QUERY...", help="Texts, or paths of images.")],
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", help="Wait at most S seconds.")] = 30.0,
    as_json: Json = False,  # noqa: ARG001 - they are JSON lines anyway
    cluster: Cluster = HERE,
) -> None:
    """Send queries to a served model, and print one JSON line for each."""
    for query, answer in zip(queries, _client(cluster).ask(name, queries, timeout_s=timeout_s), strict=True):
        typer.echo(line({"query": query, **answer}))


@app.command("list")
def list_jobs(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """List all jobs."""
    show(_client(cluster), "jobs", as_json=as_json, watch=watch)


@app.command("rate")
def rate(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show each job's query rate over the last 10 s, and how many queries it has processed."""
    show(_client(cluster), "rate", as_json=as_json, watch=watch)


@app.command("stats")
def stats(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show the processing time per query of each job: mean, standard deviation and percentiles."""
    show(_client(cluster), "stats", as_json=as_json, watch=watch)


@app.command("workers")
def workers(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show the job and the state of each worker: free, loading, hung, lost, ..."""
    show(_client(cluster), "workers", as_json=as_json, watch=watch)


@app.command("members")
def members(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show every process of the cluster."""
    show(_client(cluster), "members", as_json=as_json, watch=watch)


@app.command("set")
def change(
    job: Job,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", metavar="N|auto", help="Put N queries in a batch.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="W", help="Set the weight of its share of the query rate.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max-workers", min=1, metavar="N", help="Use at most N workers at once.")
    ] = None,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Change options of a job, from its next batch on."""
    given = {
        "batch_size": None if batch_size is None else _size(batch_size),
        "weight": weight,
        "max_workers": max_workers,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise ConfigurationError("nothing to change: give --batch-size, --weight or --max-workers")
    number = _client(cluster).change(job, **changes)
    typer.echo(line({"job": number, **changes}) if as_json else f"job {number} is changed")


@app.command("cancel")
def cancel(job: Job, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Cancel a job. Its results so far are kept."""
    number = _client(cluster).cancel(job)
    typer.echo(line({"job": number}) if as_json else f"job {number} is cancelled")


@app.command("wait")
def wait(
    job: Job,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="S", help="Wait at most S seconds; default: no limit.")
    ] = None,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Wait until a job has ended; exit with 1 if it was cancelled or the timeout expired."""
    row = _client(cluster).wait(job, timeout_s)
    typer.echo(
        line(row) if as_json else f"job {row['job']} is {row['state']}: {row['finished']} of {row['queries']} queries"
    )
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
    """Print the results so far in input order, one JSON line each."""
    from chimera.inference.results import check_path, save

    if out is not None:
        check_path(out)
    rows = _client(cluster).results(job)
    if out is None:
        for row in rows:
            typer.echo(line(row))
    else:
        typer.echo(f"{save(rows, out)} results in {out}")


def _client(cluster: Path) -> Client:
    from chimera.inference.cluster_folder import ClusterFolder

    return ClusterFolder(cluster).client()


def _size(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"--batch-size must be 'auto' or a whole number from 1, not {text!r}")
    return int(text)
