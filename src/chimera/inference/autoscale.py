"""The number of workers in the cluster's folder: the coordinator sets it between bounds, and machines with voters copy it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec

from chimera.core.errors import UnavailableError
from chimera.inference.client import Client
from chimera.inference.cluster_folder import FIRST_VERSION, ClusterFolder, Scale
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


class ScaleCopy:
    """Copies the number of workers from the coordinator of another machine, while this process stands by.

    So each machine with a voter has the number of workers that the last command has set, also after a takeover. If only
    this machine, and not that of the coordinator, was started with bounds, the coordinator gets them.

    Parameters
    ----------
    leader : as of `Autoscale`.
    folder : folder of the cluster on this machine.
    """

    def __init__(self, leader: Callable[[], Coordinator], folder: ClusterFolder) -> None:
        self._leader, self._folder = leader, folder

    def copy(self) -> None:
        """Copy the number once, if this process does not lead."""
        try:
            self._leader()
        except NotCoordinator:
            client = Client(self._folder.leader, self._folder.token(), patience_s=0.0)
            with contextlib.suppress(UnavailableError):  # a takeover; the next coordinator answers soon
                found, own = msgspec.convert(client.scale_set(), Scale), self._folder.scale()
                if found.version == 0 and own is not None and own.version == FIRST_VERSION:
                    client.scale(own.least, own.most)
                else:
                    self._folder.copy_scale(found)
