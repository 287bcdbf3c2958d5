"""Options that several commands of ``chimera infer`` have, and their values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from chimera.inference.client import Client

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
Model = Annotated[
    Path,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Use this model: a TOML file that describes it, the folder of a run, a .skops file or a factory, e.g. "
        "model.py:make.",
    ),
]
BatchSize = Annotated[str, typer.Option("--batch-size", metavar="N|auto", help="Put at most N queries in a batch.")]
Weight = Annotated[
    float, typer.Option("--weight", metavar="W", help="Set the weight of the job's share of the query rate.")
]
MaxWorkers = Annotated[
    int | None,
    typer.Option("--max-workers", min=1, metavar="N", help="Use at most N workers at once; default: no limit."),
]
Preload = Annotated[
    str,
    typer.Option(
        "--preload",
        metavar="MODULES",
        help="Import these modules before workers join, e.g. torch,mine; 'auto': those of models of Hugging "
        "Face, meanwhile; '': none.",
    ),
]
KeepModels = Annotated[
    int, typer.Option("--keep-models", min=1, metavar="N", help="Keep at most N models in the memory of a worker.")
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


def connected(cluster: str) -> Client:
    """Return a client of a cluster, given by its folder or its fixed address."""
    from chimera.inference.cluster_folder import client_of

    return client_of(cluster)


def size_of(text: str) -> int | str:
    """Return the value of ``--batch-size``. Raise ConfigurationError if it is invalid."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"--batch-size must be 'auto' or a whole number from 1, not {text!r}")
    return int(text)


def limit_of(text: str | None) -> dict[str, float | str]:
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
