"""``chimera cluster``: start, inspect and stop a cluster of workers that run jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.rows import Shown, line, printed, table
from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from chimera.jobs.cluster.folder import ClusterFolder

app = typer.Typer(help="Run a cluster of workers for jobs; see 'chimera submit'.", no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Option("--folder", metavar="DIR", envvar="CHIMERA_CLUSTER_FOLDER", help="Use the cluster of this folder."),
]
Where = Annotated[
    str,
    typer.Option(
        "--folder",
        metavar="DIR|URL",
        envvar="CHIMERA_CLUSTER_FOLDER",
        help="Use the cluster of this folder or URL; a URL needs its token in CHIMERA_CLUSTER_TOKEN.",
    ),
]
Slurm = Annotated[
    str | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE,...",
        help="Run on Slurm with these options, e.g. partition=short,time=30m,nodes=2; '' uses the defaults of Slurm.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
HERE = "runs/cluster"


@app.command("up")
def up(
    workers: Annotated[int, typer.Option("--workers", min=1, max=1000, metavar="N", help="Start N workers.")] = 2,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Listen at this address; port 0 is any free port.")
    ] = "127.0.0.1:0",
    limit_per_user: Annotated[
        int | None,
        typer.Option(
            "--limit-per-user", min=1, metavar="N", help="Give each user at most N workers at once; default: no limit."
        ),
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(
            "--keep-days", min=0, metavar="D", help="Delete a job and its run D days after its end; default: keep them."
        ),
    ] = None,
    ray: Annotated[
        str, typer.Option("--ray", metavar="ADDRESS", help="Run the jobs on this Ray cluster: 'auto' or HOST:PORT.")
    ] = "",
    hosts: Annotated[
        Path | None,
        typer.Option(
            "--hosts", metavar="FILE", help="Start a Ray cluster on the machines of this file, and run the jobs there."
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Serve a web page, too.")] = False,
    as_json: Json = False,
    folder: Folder = Path(HERE),
) -> None:
    """Start a daemon and its workers in the background, until `chimera cluster down`."""
    from chimera.jobs.cluster.folder import Options
    from chimera.jobs.session import up as start
    from chimera.web.retention import keep_s

    host, port = _address(address)
    keep_s(keep_days)
    place = _folder(folder)
    options = Options(
        workers=workers, host=host, port=port, limit_per_user=limit_per_user, keep_days=keep_days, page=page,
        ray=_ray(ray, hosts),
    )  # fmt: skip
    start(place, options)
    found = place.options()
    assert found is not None
    if as_json:
        typer.echo(line({"address": found.address, "workers": found.workers, "folder": str(place.path)}))
    else:
        typer.echo(f"{counted(found.workers, 'worker')} for jobs at {found.address}; {place.down!r} ends them")
        if page:
            typer.echo(_page(place, found.address, terminal=sys.stdout.isatty()))


@app.command("status")
def status(as_json: Json = False, folder: Where = HERE) -> None:
    """Show every process of the cluster."""
    from chimera.jobs.client.handle import client_of

    rows = client_of(folder).processes()
    if as_json:
        typer.echo(line(rows))
    else:
        columns = (
            Shown("name", 0),
            Shown("role", 2),
            Shown("state", 1),
            Shown("job", 3),
            Shown("host", 4),
            Shown("pid", 5),
        )
        printed(table(rows, columns))


@app.command("down")
def down(as_json: Json = False, folder: Folder = Path(HERE)) -> None:
    """Stop the cluster. Its jobs and runs are kept, and continue after the next `chimera cluster up`."""
    from chimera.jobs.session import down as end

    place = _folder(folder)
    was_up = end(place)
    if as_json:
        typer.echo(line({"was_up": was_up}))
    else:
        typer.echo("the cluster has ended" if was_up else f"no cluster runs from {place.path}")


def _page(place: ClusterFolder, address: str, *, terminal: bool) -> str:
    """Return the line with the page's address: with the token only on a terminal, since others may read a file or a log."""
    if terminal:
        return f"the page: {address}/#token={place.token()} (the address contains the token: keep it secret)"
    return f"the page: {address}/ asks for the token, which is in {place.path / 'token'}"


def _folder(folder: Path) -> ClusterFolder:
    """Return the folder of a cluster with a daemon."""
    from chimera.jobs.cluster.folder import ClusterFolder
    from chimera.jobs.slurm.folder import SlurmFolder

    if SlurmFolder(folder).exists:
        raise ConfigurationError(
            f"the jobs in {folder} run on Slurm, without a daemon: 'chimera cancel JOB' ends a job. For a cluster of this "
            "machine, give another --folder"
        )

    return ClusterFolder(folder)


def _ray(address: str, hosts: Path | None) -> str:
    """Return the address of the Ray cluster for the jobs, once it accepts them; empty without one."""
    if hosts is not None:
        if address:
            raise ConfigurationError(
                "--hosts starts a Ray cluster and --ray names a running one: give only one of them"
            )
        from chimera.jobs.hosts import Hosts

        address = Hosts.load(hosts).start()
    if address:
        from chimera.jobs.driver.ray_submission import connect

        connect(address)
    return address


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(f"--address must be HOST:PORT, such as 127.0.0.1:8765, not {text!r}")
    return host.strip("[]"), int(port)
