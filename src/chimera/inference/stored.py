"""The jobs and results of a cluster that is down, read from its journal."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from typing import Any

from chimera.core.closing import Closing
from chimera.core.errors import ConfigurationError, UnavailableError
from chimera.inference.api.operations import job_number
from chimera.inference.api.views import job_row
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.policies.policy import POLICIES
from chimera.inference.results import stored
from chimera.inference.scheduling.scheduler import Scheduler


class StoredJobs(Closing):
    """The jobs of a cluster that is down. It has those methods of `Client` that only read the journal.

    Parameters
    ----------
    folder : folder of the cluster; its journal is a file of this machine.

    Raises
    ------
    ConfigurationError : there is no such journal, or it is damaged.
    """

    def __init__(self, folder: ClusterFolder) -> None:
        if not folder.journal.is_file():
            raise ConfigurationError(f"there is no journal {folder.journal}: no job was submitted to this cluster")
        self._path, self._journal = folder.path, SqliteJournal(folder.journal)
        self._scheduler = Scheduler(POLICIES.create("fair-share"))
        for record in self._journal.records():
            self._scheduler.apply(record)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def rows(self, view: str) -> list[dict[str, Any]]:
        """Return the rows of ``jobs``. Those that have not ended are ``stopped``.

        Raises
        ------
        UnavailableError : the view is not ``jobs``: the others are of a running cluster.
        """
        if view != "jobs":
            up = f"chimera infer up --cluster {shlex.quote(str(self._path))}"
            raise UnavailableError(f"the cluster in {self._path} is down: {up!r} starts it")
        rows = [(job.ended, job_row(job)) for job in self._scheduler.jobs.values()]
        return [row | {"state": ended or "stopped"} for ended, row in rows]

    def results(self, job: str, first: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the results so far, as `Client.results` does.

        Raises
        ------
        ConfigurationError : there is no such job.
        """
        accepted = self._scheduler.job(job_number(self._scheduler, job)).accepted
        return itertools.chain.from_iterable(stored(self._journal, accepted, first))
