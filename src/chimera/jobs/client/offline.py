"""Jobs of a cluster that is down, read from the files of its folder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.jobs.cluster.folder import ClusterFolder, JobFolder
from chimera.jobs.files.tar import MAX_BYTES, pack, unpack
from chimera.jobs.store.records import Job, row_of
from chimera.jobs.store.states import TERMINAL
from chimera.jobs.store.store import Store


class OfflineJobs:
    """A `JobReader` of a cluster that is down.

    Parameters
    ----------
    folder : folder of the cluster.

    Raises
    ------
    ConfigurationError : the cluster never had a job, or its store was lost.
    """

    def __init__(self, folder: ClusterFolder) -> None:
        folder.check_store()
        if not folder.store.is_file() or not folder.store.stat().st_size:
            raise ConfigurationError(f"there are no jobs in {folder.path}: {folder.up!r} starts a cluster there")
        self._folder = folder

    def jobs(self) -> list[dict[str, Any]]:
        """Return a row for each job."""
        with closing(Store(self._folder.store)) as store:
            return [self._row(job) for job in store.jobs()]

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of a job.

        Raises
        ------
        ConfigurationError : there is no job with that number.
        """
        with closing(Store(self._folder.store)) as store:
            return self._row(store.job(job))

    def fetch(self, job: str, folder: Path, max_bytes: int = MAX_BYTES) -> list[str]:
        """Copy the current folder of a job's run to ``folder``; return the names of its files."""
        return copy_run(self._folder.job(self.job(job)["job"]), folder, max_bytes)

    def _row(self, job: Job) -> dict[str, Any]:
        waits = "" if job.state in TERMINAL else f"the cluster is down: {self._folder.up!r} resumes the job"
        return row_of(job, waits)


def copy_run(job: JobFolder, folder: Path, max_bytes: int) -> list[str]:
    """Copy the log and the current run from the folder of a job to ``folder``; return the names of the files."""
    return unpack(io.BufferedReader(_Stream(pack(job.run, {"log": job.log}))), folder, max_bytes)


class _Stream(io.RawIOBase):
    """A readable file of the parts of an iterator."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._left = filter(None, parts), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._parts, b"")
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count
