"""Deletion of expired jobs, with their folders and the uploaded files that no other job uses."""

from __future__ import annotations

import shutil
import time

from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.files.content_store import ContentStore
from chimera.jobs.store.store import Store

INTERVAL_S = 60.0
"""Interval between two deletions, in seconds."""
UPLOAD_GRACE_S = 3600.0
"""Time that an uploaded file is kept until a job uses it, in seconds."""


def delete_expired(folder: ClusterFolder, store: Store, keep_s: float, usage_s: float) -> None:
    """Delete jobs that ended more than ``keep_s`` seconds ago.

    Jobs are deleted from the store first, then all folders and files without a job in it. If the process dies in between, the
    next call deletes the rest.

    Parameters
    ----------
    keep_s : age of an ended job at which it is deleted, in seconds.
    usage_s : time that the store keeps the usage of workers for the queue, in seconds.
    """
    now_s = time.time()
    store.delete_ended(now_s - keep_s, now_s - usage_s)
    folders = list(folder.path.glob("jobs/*"))  # read before the jobs, so that jobs submitted meanwhile are safe
    contents = ContentStore(folder.files)
    old = contents.older_than(now_s - UPLOAD_GRACE_S)
    jobs = {job.id: job for job in store.jobs()}
    for place in folders:
        if place.name not in jobs and folder.job(place.name).driver_pid() is None:
            shutil.rmtree(place, ignore_errors=True)
    contents.delete(old - {file.sha256 for job in jobs.values() for file in job.submission.manifest.values()})
