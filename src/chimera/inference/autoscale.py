"""Autoscaling of a cluster by its coordinator: it sets the number of workers between the bounds in the cluster's folder."""

from __future__ import annotations

import time
from collections.abc import Callable

from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.scheduling.autoscaling import Autoscaler, needed
from chimera.web.logs import status

INTERVAL_S = 1.0
"""Seconds between two decisions."""


class Autoscale:
    """Sets the number of workers while this process leads.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    folder : folder of the cluster, with the bounds.
    """

    def __init__(self, leader: Callable[[], Coordinator], folder: ClusterFolder) -> None:
        self._leader, self._folder = leader, folder
        self._autoscaler: Autoscaler | None = None

    def decide(self) -> None:
        """Make one decision."""
        scale = self._folder.scale()
        try:
            leader = self._leader()
            if scale is None or scale.least == scale.most:
                raise NotCoordinator("the number of workers is fixed")
            now = leader.call(lambda: needed(leader.scheduler.jobs.values()))
        except NotCoordinator:
            self._autoscaler = None
            return
        now_s = time.monotonic()
        if self._autoscaler is None:
            self._autoscaler = Autoscaler(scale.count, now_s)
        count = self._autoscaler.wanted(now, least=scale.least, most=scale.most, now_s=now_s)
        if count != scale.count:
            status().info("%d workers instead of %d: the queries need %d", count, scale.count, now)
            self._folder.set_workers(count, scale)
