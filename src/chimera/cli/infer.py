"""``chimera infer``: commands of a cluster that serves queries with several models."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.infer_cluster import bounds, down, up
from chimera.cli.infer_views import show
from chimera.cli.rows import line
from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from chimera.cli.infer_views import Reader
    from chimera.inference.client import Client

app = typer.Typer(help="Serve several models on one cluster that they share fairly.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh the view until Ctrl-C.")]
BatchTimeout = Annotated[
    str | None,
    typer.Option(
        "--batch-timeout-s",
        metavar="S|auto",
        help="Stop a batch after S seconds of computing; default: auto, from the batches before.",
    ),
]
Worker = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's name, such as w3.")]
HERE = "runs/inference"
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="DIR|URL",
        envvar="CHIMERA_CLUSTER",
        help="Use the cluster of this folder or fixed address; an address needs its token in CHIMERA_CLUSTER_TOKEN.",
    ),
]
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
        str, typer.Option("--batch-size", metavar="N|auto", help="Put at most N queries in a batch.")
    ] = "auto",
    weight: Annotated[
        float, typer.Option("--weight", metavar="W", help="Set the weight of its share of the query rate.")
    ] = 1.0,
    max_workers: Annotated[
        int | None,
        typer.Option("--max-workers", min=1, metavar="N", help="Use at most N workers at once; default: no limit."),
    ] = None,
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
    from chimera.inference.models import read

    client = _client(cluster)
    size = _size(batch_size)
    key = uuid.uuid4().hex if key is None else key
    submitted = queries(inputs)
    try:
        with progress_bar(submitted.total_bytes) as on_progress:
            job = client.submit(
                read(model), submitted, key=key, on_progress=on_progress, copy=copy, name=name, weight=weight, batch_size=size,
                max_workers=max_workers, max_error_rate=max_error_rate, **_limit(batch_timeout),
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
    batch_timeout: BatchTimeout = None,
    reserve: Annotated[
        int, typer.Option("--reserve", min=0, metavar="N", help="Reserve N workers for the model; jobs get the rest.")
    ] = 0,
    latency_target_ms: Annotated[
        float | None,
        typer.Option(
            "--latency-target-ms",
            min=0.001,
            metavar="MS",
            help="Limit batches so that answers take about MS milliseconds; without --reserve also those of jobs.",
        ),
    ] = None,
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Serve a model that answers single queries; `chimera infer list` shows it as a job."""
    from chimera.inference.models import read

    options = {
        "weight": weight,
        "batch_size": _size(batch_size),
        "max_workers": max_workers,
        **_limit(batch_timeout),
        "reserve": reserve,
        "latency_target_s": None if latency_target_ms is None else latency_target_ms / 1000,
    }
    job = _client(cluster).serve(name, read(model), **options)
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
    """List all jobs, also while the cluster is down."""
    with _reader(cluster) as reader:
        show(reader, "jobs", as_json=as_json, watch=watch)


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


@app.command("scale")
def scale(
    workers: Annotated[str, typer.Argument(metavar="N|MIN:MAX", help="The number of workers, or its bounds.")],
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Set the number of workers of a running cluster. A worker that leaves finishes its batches first."""
    least, most = bounds(workers, "the number of workers")
    _client(cluster).scale(least, most)
    typer.echo(line({"workers": least, "most": most}) if as_json else f"the cluster will have {workers} workers")


@app.command("members")
def members(as_json: Json = False, watch: Watch = False, cluster: Cluster = HERE) -> None:
    """Show every process of the cluster."""
    show(_client(cluster), "members", as_json=as_json, watch=watch)


@app.command("set")
def change(
    job: Job,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", metavar="N|auto", help="Put at most N queries in a batch.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="W", help="Set the weight of its share of the query rate.")
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
        "batch_size": None if batch_size is None else _size(batch_size),
        "weight": weight,
        "max_workers": max_workers,
        **_limit(batch_timeout),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise ConfigurationError("nothing to change: give --batch-size, --weight, --max-workers or --batch-timeout-s")
    number = _client(cluster).change(job, **changes)
    typer.echo(line({"job": number, **changes}) if as_json else f"job {number} is changed")


@app.command("cancel")
def cancel(job: Job, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Cancel a job. Its results so far are kept."""
    number = _client(cluster).cancel(job)
    typer.echo(line({"job": number}) if as_json else f"job {number} is cancelled")


@app.command("drain")
def drain(worker: Worker, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Give a worker no more batches; it finishes those that it has. `chimera infer restart` ends this."""
    row = _client(cluster).drain(worker)
    typer.echo(line(row) if as_json else f"{row['worker']} is {row['state']}")


@app.command("restart")
def restart(worker: Worker, as_json: Json = False, cluster: Cluster = HERE) -> None:
    """Restart a worker, also if it hangs. Other workers get its batches."""
    row = _client(cluster).restart(worker)
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

    row = _client(cluster).wait(job, timeout_s)
    typer.echo(line(row) if as_json else outcome(row))
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


def _client(cluster: str) -> Client:
    from chimera.inference.cluster_folder import client_of

    return client_of(cluster)


@contextmanager
def _reader(cluster: str) -> Iterator[Reader]:
    """Yield a client of a running cluster, or the journal of one that is down."""
    from chimera.inference.cluster_folder import ClusterFolder, is_address

    folder = None if is_address(cluster) else ClusterFolder(Path(cluster))
    if folder is None or folder.lock_holder() is not None or not folder.journal.is_file():
        yield _client(cluster)
        return
    from chimera.inference.stored import StoredJobs

    typer.echo(f"the cluster in {folder.path} is down: its journal is read", err=True)
    with StoredJobs(folder) as jobs:
        yield jobs


def _size(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"--batch-size must be 'auto' or a whole number from 1, not {text!r}")
    return int(text)


def _limit(text: str | None) -> dict[str, float | str]:
    """Return the option ``batch_timeout_s``, if it is given."""
    if text is None or text == "auto":
        return {} if text is None else {"batch_timeout_s": text}
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"--batch-timeout-s must be 'auto' or a number above 0, not {text!r}")
    return {"batch_timeout_s": seconds}
