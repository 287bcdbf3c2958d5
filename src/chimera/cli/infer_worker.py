"""``chimera infer worker``: workers of this machine for a cluster on another machine."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated

import typer

from chimera.cli.infer_cluster import devices, takes_code_by_default
from chimera.cli.infer_options import KeepModels, Preload

FOLDER = Path("runs/inference-worker")


def worker(
    join: Annotated[
        str,
        typer.Option(
            "--join",
            metavar="URL,...",
            help="Dial the cluster at this address, that of 'infer up --host --port'; with voters, at one of several.",
        ),
    ],
    workers: Annotated[int, typer.Option("--workers", min=1, max=100, metavar="N", help="Start N workers.")] = 1,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Call the workers NAME.w0, NAME.w1, ...; default: the host's name."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Read the token, that of the file 'worker-token' of the cluster, from FILE; default: CHIMERA_CLUSTER_TOKEN.",
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", metavar="FILE", help="Accept certificates of these authorities; default: the system's."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Present this certificate to the cluster.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of --tls-cert.")] = None,
    keep_models: KeepModels = 4,
    preload: Preload = "auto",
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="LIST", help="Spread the workers over these GPUs, e.g. 0,1.")
    ] = "",
    code: Annotated[
        bool | None,
        typer.Option(
            "--code/--no-code",
            help="Load models that run code: the cluster names files of this machine. Default: only of a cluster on it.",
        ),
    ] = None,
    fetch_models: Annotated[
        bool,
        typer.Option(
            "--fetch-models",
            help="Fetch folders of models that this machine lacks, if the cluster has --fetch-models too. No code is fetched.",
        ),
    ] = False,
    fetch_gib: Annotated[
        float, typer.Option("--fetch-gib", min=0.001, metavar="G", help="Keep at most G GiB of fetched models.")
    ] = 64.0,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Keep the workers' logs in this folder of this machine.")
    ] = FOLDER,
) -> None:
    """Join a cluster on another machine with workers of this one; run until Ctrl-C, after which they finish their batches."""
    from chimera.inference.cluster_folder import ClusterFolder
    from chimera.inference.remote_workers.cluster import ClusterAddress, addresses_of, tls_context, token_of
    from chimera.inference.remote_workers.machine import MachineOptions
    from chimera.inference.remote_workers.machine import join as run

    dialed = [f"{each.host}:{each.port}" for each in addresses_of(join)]
    cluster = ClusterAddress(join, token_of(join, token_file), tls_context(tls_ca, tls_cert, tls_key), typer.echo)
    takes_code = takes_code_by_default(dialed) if code is None else code
    own = _own_name() if name is None else name
    fetch_bytes = int(fetch_gib * (1 << 30)) if fetch_models else 0
    options = MachineOptions(own, workers, keep_models, preload, devices(gpus), takes_code, fetch_bytes)
    run(ClusterFolder(folder), cluster, options, typer.echo)
    typer.echo("all have ended")


def _own_name() -> str:
    """Return the host's name without its domain, in letters that names may have."""
    return re.sub("[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:41].lstrip("-_") or "machine"
