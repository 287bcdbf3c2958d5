"""``chimera report``: write the HTML report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run, e.g. runs/demo.")],
) -> None:
    """Write report.html from the files of a run, and print its path."""
    from chimera.core.errors import ConfigurationError

    if not run_dir.is_dir():
        raise ConfigurationError(f"there is no run folder {str(run_dir)!r}")
    from chimera.report.html import write_report

    typer.echo(write_report(run_dir))
