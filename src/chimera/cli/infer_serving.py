"""``chimera infer serve``, ``unserve`` and ``ask``: models that answer single queries."""

from __future__ import annotations

from typing import Annotated

import typer

from chimera.cli.infer_options import (
    HERE,
    BatchSize,
    BatchTimeout,
    Cluster,
    Json,
    MaxWorkers,
    Model,
    Weight,
    connected,
    limit_of,
    size_of,
)
from chimera.cli.rows import line


def serve(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name in its route: POST /v1/infer/NAME.")],
    model: Model,
    batch_size: BatchSize = "auto",
    weight: Weight = 1.0,
    max_workers: MaxWorkers = None,
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
        "batch_size": size_of(batch_size),
        "max_workers": max_workers,
        **limit_of(batch_timeout),
        "reserve": reserve,
        "latency_target_s": None if latency_target_ms is None else latency_target_ms / 1000,
    }
    job = connected(cluster).serve(name, read(model), **options)
    typer.echo(line({"job": job, "name": name}) if as_json else f"{name} is served, as job {job}")


def unserve(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a served model.")],
    as_json: Json = False,
    cluster: Cluster = HERE,
) -> None:
    """Stop serving a model. Pending queries are still answered."""
    job = connected(cluster).unserve(name)
    typer.echo(line({"job": job, "name": name}) if as_json else f"{name} is served no more")


def ask(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a served model.")],
    queries: Annotated[list[str], typer.Argument(metavar="QUERY...", help="Texts, or paths of images.")],
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", help="Wait at most S seconds.")] = 30.0,
    as_json: Json = False,  # noqa: ARG001 - they are JSON lines anyway
    cluster: Cluster = HERE,
) -> None:
    """Send queries to a served model, and print one JSON line for each."""
    for query, answer in zip(queries, connected(cluster).ask(name, queries, timeout_s=timeout_s), strict=True):
        typer.echo(line({"query": query, **answer}))
