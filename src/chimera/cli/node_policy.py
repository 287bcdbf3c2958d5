"""``chimera node runs|approve|refuse``: the decisions of a node's administrator about runs."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

_Folder = Annotated[Path, typer.Option("--folder", metavar="DIR", help="Use this folder of the node.")]
_Number = Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the run, see 'chimera node runs'.")]
_NODE = Path("chimera-node")


def add_to(app: typer.Typer) -> None:
    """Add the commands to those of ``chimera node``."""
    for command in (runs, approve, refuse):
        app.command(command.__name__)(command)


def runs(
    folder: _Folder = _NODE,
    every: Annotated[bool, typer.Option("--all", help="Show also runs that were approved or declined.")] = False,
) -> None:
    """Show the runs that wait for a decision: the requester, the values that leave the node, and epsilon before and after."""
    from chimera.federation.policy.approvals import described, runs_of

    found = runs_of(folder, held_only=not every)
    for run in found:
        typer.echo("\n".join(described(run)))
        if run.state == "held":
            typer.echo(f"to decide: chimera node approve {run.number}    or: chimera node refuse {run.number}")
        typer.echo("")
    if not found:
        typer.echo("no run waits for a decision" if not every else "no run has asked this node")


def approve(number: _Number, folder: _Folder = _NODE) -> None:
    """Approve a run, which then begins. The policy still applies to each of its calls."""
    _decide(folder, number, approved=True)


def refuse(number: _Number, folder: _Folder = _NODE) -> None:
    """Decline a run, or end a run that was approved. A declined run cannot be approved later."""
    _decide(folder, number, approved=False)


def _decide(folder: Path, number: int, *, approved: bool) -> None:
    from chimera.federation.policy.approvals import decide

    run = decide(folder, number, approve=approved, by=getpass.getuser())
    typer.echo(f"run {number} of {run.requester} is {'approved' if approved else 'declined'}")
