"""``chimera audit``: verify the audit log of a hub or node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chimera.core.counted import counted
from chimera.core.printable import printable

app = typer.Typer(help="Verify the audit log of a hub or a node of a federation.", no_args_is_help=True)

ALTERED = 3
"""Exit code for a log that was altered; 2: there is no log, or its ledger cannot be read."""


@app.callback()
def _group() -> None:
    """Keep the name of the only command."""


@app.command("verify")
def verify(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|FOLDER", help="The file of the log, or the folder with the log and its ledger."),
    ],
) -> None:
    """Check that no line was changed, removed, added or moved; otherwise name the line and its time, and exit with 3.

    In a folder, the end of the log is compared with the ledger, so that lines that were cut off are noticed.
    """
    from chimera.federation.audit.line import AuditError
    from chimera.federation.audit.verify import verify as verified

    try:
        found = verified(path)
    except AuditError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(ALTERED) from None
    comparison = "the last is that of the ledger" if found.compared else "the end was not compared with a ledger"
    if found.removed:
        typer.echo(f"removed to keep the bound of the log: lines 1 to {found.removed}")
    typer.echo(f"{counted(found.lines - found.removed, 'line')}, each follows the one before; {comparison}")
    typer.echo(f"SHA-256 of the last line: {found.head}")
    if found.unwritten:
        typer.echo(
            f"{counted(found.unwritten, 'further line')} in the ledger; the next start writes to the log what it lacks"
        )
