"""``chimera hub``: run the hub of a federation, and decide on its members."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from chimera.core.counted import counted

app = typer.Typer(help="Run the hub of a federation, and decide on its members.", no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Option("--folder", metavar="DIR", help="Use this folder of the hub: authority, key of its server, state."),
]
_HUB = Path("chimera-hub")


@app.command("up")
def up(
    folder: Folder = _HUB,
    host: Annotated[str, typer.Option("--host", help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Listen on this port; 0: any free one.")] = 8443,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Use this name of this machine in the certificate that the hub makes. Repeatable."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="Use this certificate of the server, with its chain; PEM."),
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Use this key of that certificate; PEM.")] = None,
    audit_mb: Annotated[
        int,
        typer.Option("--audit-mb", min=16, help="Remove the oldest file of the audit log above this size, in MB."),
    ] = 1024,
    page: Annotated[
        str | None,
        typer.Option(
            "--page", metavar="[HOST:]PORT", help="Serve a web page with nodes and runs, too; on 127.0.0.1 by default."
        ),
    ] = None,
) -> None:
    """Relay the calls of drivers to nodes until Ctrl-C. Every connection needs a certificate of this hub."""
    _require()
    from chimera.federation.hub.server import Hub, serve

    pages = None if page is None else _page_server(folder, page)
    hub = Hub(folder, host=host, port=port, names=name or [], certificate=certificate, key=key, audit_mb=audit_mb)

    def started(url: str) -> None:
        typer.echo(f"the hub serves at {url}; 'chimera hub invite NAME' invites a node")
        if pages is not None:
            pages.start(*hub.server_files)
            typer.echo(_page_line(pages, terminal=sys.stdout.isatty()))

    try:
        serve(hub, started)
    finally:
        if pages is not None:
            pages.close()


@app.command("invite")
def invite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the node or requester.")],
    requester: Annotated[
        bool, typer.Option("--requester", help="Invite a requester, whose runs call nodes; default: a node.")
    ] = False,
    folder: Folder = _HUB,
) -> None:
    """Print a code by which a node or requester joins. The code is valid once, within 24 hours."""
    _require()
    from chimera.federation.hub.invite import invite as make

    url, code = make(folder, "requester" if requester else "node", name)
    typer.echo(f"chimera node join {url} --code {code}")


@app.command("nodes")
def nodes(folder: Folder = _HUB) -> None:
    """Show the members, and which nodes are connected."""
    _require()
    import time

    from chimera.cli.rows import Shown, printed, table
    from chimera.federation.hub.invite import opened
    from chimera.report.text_table import FILE_INSTEAD

    with opened(folder) as state:
        members = state.members()
    now_s = time.time()
    rows = []
    for member in members:
        status = member.state(now_s)
        rows.append(
            {
                "name": member.name, "role": member.role, "status": status, "member since": _time(member.since_s),
                "connected since": _time(member.here_s if status == "connected" else None), "last seen": _time(member.seen_s),
                "version": member.version,
            }
        )  # fmt: skip
    columns = [
        Shown("name", 0),
        Shown("role", 2),
        Shown("status", 1),
        Shown("last seen", 3),
        Shown("connected since", 4),
    ]
    printed(table(rows, [*columns, Shown("member since", 6), Shown("version", 5)], instead=FILE_INSTEAD))


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the node or requester.")], folder: Folder = _HUB
) -> None:
    """Revoke the certificate of a node or requester; a running hub ends its connections within a second."""
    _require()
    from chimera.federation.hub.invite import revoke as end

    certificates, invitations = end(folder, name)
    what = counted(certificates, "certificate") if certificates else counted(invitations, "invitation")
    typer.echo(f"revoked {what} of {name}")


@app.command("demo")
def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="A new folder for identities, data, logs and the experiment.")
    ] = Path("chimera-federation"),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Listen on this port; 0: any free one.")] = 0,
) -> None:
    """Run a hub and three nodes with a part of breast-cancer each on this machine, until Ctrl-C."""
    _require()
    import threading

    from chimera.federation.hub.demo import EXPERIMENT, NODES
    from chimera.federation.hub.demo import demo as running

    with running(folder, port) as url:
        typer.echo(f"the hub serves at {url}; connected: {', '.join(NODES)}")
        typer.echo(f"to train, in another terminal: chimera train {quote(str(folder / EXPERIMENT))}")
        typer.echo(f"to list the nodes: chimera hub nodes --folder {quote(str(folder / 'hub'))}")
        threading.Event().wait()


def _page_server(folder: Path, place: str) -> Any:
    from chimera.federation.hub.page.serving import PageServer, place_of

    return PageServer(folder, *place_of(place))


def _page_line(page: Any, *, terminal: bool) -> str:
    """Return the line with the page's address: with the token only on a terminal, since others may read a file or a log."""
    if terminal:
        return f"the page: {page.address}#token={page.token} (the address contains the token: keep it secret)"
    return f"the page: {page.address} asks for the token, which is in {page.token_file}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _require() -> None:
    from chimera.core.extras import require_federation

    require_federation("a hub")
