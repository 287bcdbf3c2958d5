"""``chimera node``: participate in a federation with the data of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Participate in a federation: dial out to its hub, keep the data here.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Folder of the identity: its key, its certificate, its answers.")
]
_NODE = Path("chimera-node")


@app.command("join")
def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the hub: https://host:port.")],
    code: Annotated[str, typer.Option("--code", help="Code of 'chimera hub invite'.")],
    folder: Folder = _NODE,
) -> None:
    """Join a hub: make a key, which stays here, and get a certificate for it."""
    _require()
    from chimera.federation.identity.join import join as joined

    member = joined(url, code, folder)
    typer.echo(f"joined {member.hub} as the {member.role} {member.name}; the identity is in {folder}")


@app.command("serve")
def serve(
    data: Annotated[Path, typer.Option("--data", metavar="PATH", help="Data of this node.")],
    folder: Folder = _NODE,
    model: Annotated[str, typer.Option("--model", help="Registered name of the model.")] = "mlp",
) -> None:
    """Connect to the hub, and run the calls that are allowed, until Ctrl-C."""
    _require()
    from chimera.engines.federation.credentials import Credentials
    from chimera.federation.node.gate import AllowAll
    from chimera.federation.node.hosting import hosted
    from chimera.federation.node.service import Service, serve

    credentials = Credentials.read(folder, "node")
    kinds = hosted(credentials.name, data, model)

    def joined() -> None:
        typer.echo(f"{credentials.name} is connected to {credentials.hub}")

    serve(Service(credentials, kinds, AllowAll(), joined))


def _require() -> None:
    from chimera.core.extras import require_federation

    require_federation("a node of a federation")
