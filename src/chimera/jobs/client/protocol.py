"""Operations on the jobs of a cluster of any kind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from chimera.core.errors import TimeLimitError
from chimera.jobs.files.tar import MAX_BYTES
from chimera.jobs.store.records import Submission
from chimera.jobs.store.states import TERMINAL


class JobReader(Protocol):
    """Queries on jobs that work while their cluster is up and while it is down."""

    def jobs(self) -> list[dict[str, Any]]:
        """Return a row for each job."""

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of a job."""

    def fetch(self, job: str, folder: Path, max_bytes: int = MAX_BYTES) -> list[str]:
        """Copy the current folder of a job's run to ``folder``; return the names of its files."""


class JobClient(JobReader, Protocol):
    """All operations on jobs. Each kind of cluster has a client; commands make no other distinction."""

    def submit(self, submission: Submission, sources: Mapping[str, Path]) -> str:
        """Send the files of a job, submit it, and return its number; ``sources`` is the path of each file of the manifest."""

    def processes(self) -> list[dict[str, Any]]:
        """Return a row for each process of the cluster."""

    def cancel(self, job: str) -> str:
        """Cancel a job, and return its number."""

    def retry(self, job: str) -> str:
        """Resume a job that failed or was cancelled, and return its number."""

    def follow(self, job: str, *, from_start: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the updates of a job until it ends: ``{"job": row}``, ``{"log": line}`` or ``{"told": update}``."""

    def wait(self, job: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a job has ended, and return its row."""


def await_end(reader: JobReader, job: str, timeout_s: float | None, poll_s: float) -> dict[str, Any]:
    """Wait until a job has ended, and return its row.

    Raises
    ------
    TimeLimitError : the job has not ended within ``timeout_s`` seconds.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while (row := reader.job(job))["state"] not in TERMINAL:
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise TimeLimitError(f"job {job} is {row['state']} after {timeout_s:g} s")
        time.sleep(poll_s)
    return row
