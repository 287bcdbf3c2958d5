"""The folders of the runs that ``chimera watch`` follows: of a path, a job of a cluster, or an object store."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.report.run_files import run_folder
from chimera.training.artifacts.location import folder_of
from chimera.web.live.server import Followed

_JOB = re.compile("[1-9][0-9]{0,17}", re.ASCII)


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
    if folder is None:
        with _copied(run) as copy:
            yield copy
    elif _JOB.fullmatch(run) and not folder.exists():
        with _job(run, cluster) as job:
            yield job
    elif (folder / "grid.json").is_file():
        raise ConfigurationError(
            f"{run!r} is the folder of a comparison: give the folders of its runs, such as {run.rstrip('/')}/*"
        )
    else:
        yield Followed(run_folder(folder).resolve().name, folder)


@contextmanager
def _job(job: str, cluster: str) -> Iterator[Followed]:
    from chimera.jobs.client.handle import reader_of
    from chimera.jobs.cluster.folder import ClusterFolder

    reader = reader_of(cluster)
    row = reader.job(job)
    name = f"job {row['job']}: {row['name']}"
    if "://" not in cluster:
        yield Followed(name, ClusterFolder(Path(cluster)).job(row["job"]).run)
        return
    from chimera.jobs.client.client import Client
    from chimera.web.live.update import UpdatedCopy

    assert isinstance(reader, Client)  # an address is that of a daemon
    with tempfile.TemporaryDirectory(prefix="chimera-watch-") as private:
        folder = Path(private) / "run"
        copy = UpdatedCopy(partial(reader.live, row["job"]), folder)
        copy.download()
        yield Followed(name, folder, copy.refresh)


@contextmanager
def _copied(url: str) -> Iterator[Followed]:
    from chimera.training.artifacts.object_store import ObjectStore
    from chimera.web.live.store_copy import StoreCopy

    store = ObjectStore(url)
    with tempfile.TemporaryDirectory(prefix="chimera-watch-") as private:
        copy = StoreCopy(store, Path(private))
        copy.download()
        if not any(Path(private).iterdir()):
            raise ConfigurationError(f"there is no run in {store.url}")
        yield Followed(store.name, Path(private), copy.refresh)
