"""``chimera infer up`` and ``chimera infer down``: start and stop a cluster that serves queries."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from chimera.cli.infer_options import KeepModels, Preload
from chimera.core.errors import ConfigurationError, MissingExtraError

Cluster = Annotated[
    Path, typer.Option("--cluster", metavar="DIR", envvar="CHIMERA_CLUSTER", help="Use the cluster of this folder.")
]
HERE = Path("runs/inference")
LOOPBACK = "127.0.0.1"
STOP_S = 30.0


def up(
    workers: Annotated[
        str,
        typer.Option(
            "--workers", metavar="N|MIN:MAX", help="Start N workers; MIN:MAX changes their number by the queue time."
        ),
    ] = "2",
    standbys: Annotated[
        int | None,
        typer.Option(
            "--standbys",
            min=0,
            max=10,
            metavar="N",
            help="Start N hot standby coordinators; default: 1. Not with --voters.",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="Share workers by this policy; see 'chimera list policies'.")
    ] = "fair-share",
    fair_by: Annotated[
        str,
        typer.Option(
            "--fair-by", metavar="UNIT", help="Measure the shares of jobs in queries, or in tokens of language models."
        ),
    ] = "queries",
    preload: Preload = "auto",
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
    keep_models: KeepModels = 4,
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus",
            metavar="LIST|G",
            help="Spread the workers over these GPUs, e.g. 0,1; with --ray, reserve G of Ray's GPUs for each, e.g. 0.5.",
        ),
    ] = "",
    code: Annotated[
        bool | None,
        typer.Option(
            "--code/--no-code",
            help="Accept models that run code: kind 'factory', or keys that trust a file. "
            "Default: --code, unless a voter or --host listens beyond this machine.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Listen at this host for --port; beyond loopback with TLS.")
    ] = LOOPBACK,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Listen at a fixed address that always leads to the coordinator; 0 is any free port.",
        ),
    ] = None,
    fetch_models: Annotated[
        bool,
        typer.Option(
            "--fetch-models",
            help="Send folders of models to workers of other machines that lack them; no code is sent.",
        ),
    ] = False,
    cluster: Cluster = HERE,
) -> None:
    """Start a coordinator, standbys and workers; run until Ctrl-C or `chimera infer down`."""
    from chimera.inference.cluster_folder import ClusterFolder
    from chimera.inference.cluster_options import ClusterOptions
    from chimera.inference.supervisor import supervise

    least, most = bounds(workers, "--workers")
    if voters and standbys is not None:
        raise ConfigurationError("--standbys has no effect with --voters: all voters but the leader are standbys")
    if port is None and host != LOOPBACK:
        raise ConfigurationError("--host has no effect without --port")
    addresses = _voters(voters)
    options = ClusterOptions(
        least, 1 if standbys is None else standbys, policy, fair_by, preload, ray, addresses, keep_days, keep_models,
        _gpus_of_ray(gpus) if ray else 0.0,
        takes_code_by_default([*addresses, f"{host}:0"]) if code is None else code, host, port, most,
        () if ray else devices(gpus), fetch_models,
    )  # fmt: skip
    supervise(ClusterFolder(cluster), options, typer.echo)
    typer.echo("all have ended")


def bounds(text: str, what: str) -> tuple[int, int]:
    """Return the bounds of a number of workers, ``N`` or ``MIN:MAX``; ``what`` names it in the error."""
    least, colon, most = text.partition(":")
    numbers = [least, most] if colon else [least, least]
    if not all(re.fullmatch("[0-9]{1,4}", number, re.ASCII) for number in numbers) or int(numbers[0]) > int(numbers[1]):
        raise ConfigurationError(f"{what} must be N or MIN:MAX, such as 4 or 2:8, not {text!r}")
    from chimera.inference.cluster_folder import MAX_WORKERS

    if int(numbers[-1]) > MAX_WORKERS:
        raise ConfigurationError(f"{what}: a cluster has at most {MAX_WORKERS} workers, not {numbers[-1]}")
    return int(numbers[0]), int(numbers[1])


def devices(text: str) -> list[str]:
    """Return the GPUs of a list, as ``CUDA_VISIBLE_DEVICES`` names them."""
    devices = text.split(",") if text else []
    if not all(re.fullmatch("[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]{1,80}", device, re.ASCII) for device in devices):
        raise ConfigurationError(f"--gpus must be numbers of GPUs with commas, such as 0,1, not {text!r}")
    return devices


def _gpus_of_ray(text: str) -> float:
    """Return the number of Ray's GPUs for each worker."""
    if text and not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", text, re.ASCII):
        raise ConfigurationError(f"--gpus must be a number with --ray, such as 1 or 0.5, not {text!r}")
    return float(text or 0)


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
    """Return whether a cluster that listens at these addresses accepts models that run code by default."""
    from chimera.core.address import is_loopback

    return all(is_loopback(address.rpartition(":")[0].strip("[]")) for address in addresses)


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
