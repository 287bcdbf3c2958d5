"""``chimera infer serve``, ``unserve`` and ``ask``: models that answer single queries."""

from __future__ import annotations

import json
from typing import Annotated, Any

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
from chimera.core.errors import ConfigurationError


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
    parse: Annotated[bool, typer.Option("--parse", help="Read each query as JSON, such as '[5.1, 3.5, 1.4]'.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="S", help="Wait at most S seconds.")] = 30.0,
    as_json: Json = False,  # noqa: ARG001 - they are JSON lines anyway
    cluster: Cluster = HERE,
) -> None:
    """Send queries to a served model, and print one JSON line for each."""
    parsed = [_parsed(query) for query in queries] if parse else queries
    for query, answer in zip(parsed, connected(cluster).ask(name, parsed, timeout_s=timeout_s), strict=True):
        typer.echo(line({"query": query, **answer}))


def _parsed(query: str) -> Any:
    try:
        return json.loads(query, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the query {query[:80]!r} is no JSON: {error}") from None


def _no_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
