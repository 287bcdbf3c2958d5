"""The folders of the runs that ``chimera watch`` follows: of a path, a job of a cluster, or an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.training.artifacts.location import folder_of
from chimera.web.live.server import Followed


@contextmanager
def followed(run: str, cluster: str) -> Iterator[Followed]:
    """Yield the run to follow; a copy of its files, if it needs one, is removed at the end of the context.

    Parameters
    ----------
    run : folder, number of a job, or URL of an object store.
    cluster : folder or URL of the cluster of jobs.

    Raises
    ------
    ConfigurationError : there is no such run.
    """
    folder = folder_of(run)
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"there is no run folder {run!r}; give the folder of a run, such as runs/<name>")
    if folder is not None:
        yield Followed(Path(folder).resolve().name, folder)
