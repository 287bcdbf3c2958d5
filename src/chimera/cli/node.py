"""``chimera node``: participate in a federation with the data of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chimera.cli.node_policy import add_to as add_decisions_to
from chimera.core.errors import ConfigurationError

app = typer.Typer(help="Participate in a federation: dial out to its hub, keep the data here.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Use this folder of the identity: key, certificate, answers.")
]
_NODE = Path("chimera-node")
_POLICY = """
# The runs that this node executes, and the values that it releases. All keys: docs/how-to/federation-policy.md
approval = "ask"                     # each run waits for: chimera node approve N
secure_aggregation = "required"      # only sums of at least three nodes can be read
min_nodes_in_sum = 3

[requesters]
names = ["alice"]                    # names in certificates

[strategies.fed-avg]
local_steps = { most = 50 }

[models.mlp]
hidden = "any"

[privacy]
min_noise = 1.0
max_clip = 1.0
epsilon_per_requester = 4.0          # how much all updates together may reveal
epsilon_in_all = 8.0

[limits]
min_rows = 20

[release]
metrics = []                         # such as ["loss", "accuracy"], over this node's test rows
"""


@app.command("join")
def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the hub: https://host:port.")],
    code: Annotated[str, typer.Option("--code", help="Join with this code of 'chimera hub invite'.")],
    folder: Folder = _NODE,
) -> None:
    """Join a hub: make a key, which stays here, and get a certificate for it."""
    _require()
    from chimera.federation.identity.join import join as joined

    member = joined(url, code, folder)
    typer.echo(f"joined {member.hub} as the {member.role} {member.name}; the identity is in {folder}")


@app.command("serve")
def serve(
    data: Annotated[
        Path,
        typer.Option("--data", metavar="PATH", help="Use these data: .parquet, .csv, .npz, or a folder of images."),
    ],
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="Apply this policy, see docs/how-to/federation-policy.md."),
    ] = None,
    folder: Folder = _NODE,
    target: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="Predict this column; default: the last one.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Set classification or regression; default: by the type of the target.")
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option(
            "--split-by", metavar="COLUMN", help="Keep rows with the same value, such as a patient, in one part."
        ),
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option("--test-fraction", help="Use this share of the rows for evaluation; default: 0.2.")
    ] = None,
) -> None:
    """Connect to the hub, and run the calls that the policy allows, until Ctrl-C."""
    _require()
    if policy is None:
        typer.echo(_POLICY.strip())
        raise ConfigurationError(
            "a node needs a policy, which determines the runs that it executes and the values that it releases: write the "
            "lines above to policy.toml, change them, and give --policy policy.toml"
        )
    from chimera.federation.node.hosting import serve_node
    from chimera.federation.policy.policy import Policy

    given = {"target": target, "task": task, "split_by": split_by, "test_fraction": test_fraction}
    decide = "" if folder == _NODE else f" --folder {folder}"

    def joined(own: Any) -> None:
        typer.echo(f"{own.name} is connected to {own.hub}")

    def held(number: int, requester: str) -> None:
        typer.echo(
            f"run {number} of {requester} waits: chimera node runs{decide}, then chimera node approve {number}{decide}"
        )

    options = {key: value for key, value in given.items() if value is not None}
    serve_node(folder, data, Policy.load(policy), options, joined, held)


add_decisions_to(app)


def _require() -> None:
    from chimera.core.extras import require_federation

    require_federation("a node of a federation")
