"""What a long-lived cluster forgets: jobs that have been over for long, with their folders, and files that no job names."""

from __future__ import annotations

import shutil
import time

from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.files.content_store import Contents
from chimera.jobs.store.store import Store

EVERY_S = 60.0
"""How often a cluster looks."""
UPLOAD_S = 3600.0
"""So long a file may be there before the job comes that names it."""


def forget(folder: ClusterFolder, store: Store, keep_s: float, uses_s: float) -> None:
    """Forget what has been over for longer than ``keep_s``.

    The store goes first, and then what nobody in it names: so whoever dies in between leaves nothing that the next one misses.

    Parameters
    ----------
    uses_s : so long the store keeps whose workers were whose, for the queue.
    """
    now_s = time.time()
    store.forget(now_s - keep_s, now_s - uses_s)
    places = list(folder.path.glob("jobs/*"))  # before the jobs: what is submitted meanwhile is not among them
    contents = Contents(folder.files)
    unnamed = contents.older(now_s - UPLOAD_S)
    jobs = {job.id: job for job in store.jobs()}
    for place in places:
        if place.name not in jobs and folder.job(place.name).driver() is None:
            shutil.rmtree(place, ignore_errors=True)
    contents.drop(unnamed - {file.sha256 for job in jobs.values() for file in job.submission.manifest.values()})
