"""``chimera infer``: commands of a cluster that serves queries with several models."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.infer_views import show
from chimera.cli.rows import line
from chimera.core.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from chimera.inference.client import Client

app = typer.Typer(help="Serve several models on one cluster that they share fairly.", no_args_is_help=True)

Cluster = Annotated[
    Path, typer.Option("--cluster", metavar="DIR", envvar="CHIMERA_CLUSTER", help="Use the cluster of this folder.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh the view until Ctrl-C.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's number or name.")]
HERE = Path("runs/inference")
STOP_S = 30.0


@app.command("up")
def up(
    workers: Annotated[int, typer.Option("--workers", min=0, metavar="N", help="Start N workers.")] = 2,
    standbys: Annotated[
        int | None,
        typer.Option(
            "--standbys", min=0, metavar="N", help="Start N hot standby coordinators; default: 1. Not with --voters."
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="Share workers by this policy; see 'chimera list policies'.")
    ] = "fair-share",
    preload: Annotated[
        str,
        typer.Option(
            "--preload", metavar="MODULES", help="Import these modules when a worker starts, e.g. torch,transformers."
        ),
    ] = "",
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Run workers as actors of this Ray cluster: 'auto' or HOST:PORT."
        ),
    ] = None,
    voters: Annotated[
        str,
        typer.Option(
            "--voters",
            metavar="A,B,C",
            help="Replicate the journal on three voters, each HOST:PORT, and start those of this machine.",
        ),
    ] = "",
    keep_days: Annotated[
        float | None,
        typer.Option(
            "--keep-days",
            min=0,
            metavar="D",
            help="Delete a job and its results D days after its end; default: keep them.",
        ),
    ] = None,
    keep_models: Annotated[
        int, typer.Option("--keep-models", min=1, metavar="N", help="Keep at most N models in the memory of a worker.")
    ] = 4,
    gpus: Annotated[
        float, typer.Option("--gpus", min=0, metavar="G", help="Reserve G of Ray's GPUs for each worker, e.g. 0.5.")
    ] = 0.0,
    code: Annotated[
        bool | None,
        typer.Option(
            "--code/--no-code",
            help="Accept models that run code: kind 'factory', or keys that trust a file. "
            "Default: --code, unless a voter listens beyond this machine.",
        ),
    ] = None,
    cluster: Cluster = HERE,
) -> None:
    """Start a coordinator, standbys and workers; run until Ctrl-C or `chimera infer down`."""
    from chimera.inference.cluster_folder import ClusterFolder
    from chimera.inference.supervisor import ClusterOptions, keep_up

    if gpus and not ray:
        raise ConfigurationError("--gpus is for workers of Ray (--ray); CUDA_VISIBLE_DEVICES says which others see")
    if voters and standbys is not None:
        raise ConfigurationError("--standbys has no effect with --voters: all voters but the leader are standbys")
    addresses = _voters(voters)
    options = ClusterOptions(
        workers, 1 if standbys is None else standbys, policy, preload, ray, addresses, keep_days, keep_models, gpus,
        takes_code_by_default(addresses) if code is None else code,
    )  # fmt: skip
    keep_up(ClusterFolder(cluster), options, typer.echo)
    typer.echo("all have ended")


def _voters(given: str) -> list[str]:
    """Return the addresses of the voters, checked."""
    from chimera.core.address import Address
    from chimera.inference.supervisor import is_here

    addresses = [address.strip() for address in given.split(",") if address.strip()]
    if not addresses:
        return []
    wrong = [address for address in addresses if not re.fullmatch(r".+:[0-9]{1,5}", address)]
    if wrong or len(set(addresses)) != 3:
        raise ConfigurationError(f"--voters are three different addresses, host:port with commas, not {given!r}")
    if importlib.util.find_spec("pysyncobj") is None:
        raise MissingExtraError("--voters", "pysyncobj", "inference")
    if not any(map(is_here, addresses)):
        raise ConfigurationError(f"--voters: none of {given} is an address of this machine")
    for address in addresses:  # clients send the cluster's token there
        Address.of(f"http://{address}", "--voters:").check_token_is_protected()
    return addresses


def takes_code_by_default(addresses: Sequence[str]) -> bool:
    """Return whether a cluster with these voters accepts models that run code by default."""
    from chimera.core.address import is_loopback

    return all(is_loopback(address.rpartition(":")[0].strip("[]")) for address in addresses)


@app.command("down")
def down(cluster: Cluster = HERE) -> None:
    """Stop the cluster. Its jobs and results are kept; jobs continue after the next `chimera infer up`."""
    from chimera.inference.cluster_folder import ClusterFolder

    folder = ClusterFolder(cluster)
    pid = folder.lock_holder()
    if pid is None:
        typer.echo(f"no cluster runs from {folder.path}")
        return
    os.kill(pid, signal.SIGTERM)
    if not folder.await_end(STOP_S):
        typer.echo(f"error: process {pid} has not ended within {STOP_S:g} s", err=True)
        raise typer.Exit(1)
    typer.echo("the cluster has ended")


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
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Submit a job, and print its number at once."""
    from chimera.inference.inputs import queries
    from chimera.inference.models import read

    client = _client(cluster)
    size = _size(batch_size)
    job = client.submit(
        read(model), list(queries(inputs)), name=name, weight=weight, batch_size=size, max_workers=max_workers
    )
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
