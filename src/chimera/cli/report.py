"""``chimera report``: write the HTML report of a run again."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    run_dir: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR|URL", help="The folder of a run, e.g. runs/demo, or its URL in an object store."
        ),
    ],
) -> None:
    """Write report.html from the files of a run, and print its path."""
    from chimera.core.errors import ConfigurationError
    from chimera.training.artifacts.download import REPORTED, local_copy
    from chimera.training.artifacts.location import folder_of, path_in_run

    folder = folder_of(run_dir)
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"there is no run folder {run_dir!r}")
    from chimera.report.html import write_report

    with local_copy(run_dir, REPORTED) as copy:
        path = write_report(copy)
        if folder is None:
            from chimera.training.artifacts.object_store import ObjectStore

            ObjectStore(run_dir).put_file(path, path.name)
    typer.echo(path_in_run(run_dir, path.name))
