"""The tallies of the workers of a run, asked for together with the work that they count where this saves requests."""

from __future__ import annotations

from typing import Any

from chimera.core.engine import Engine
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.messages.tally import Tally


class Tallies:
    """Collects the tallies of workers.

    Engines that send several calls in one request have ``follow``: it issues a call if a call of the actor has not ended.
    There, the tallies are requested before the results of the last round have arrived.
    """

    def __init__(self, engine: Engine, monitor: HeartbeatMonitor, cluster: TrainingCluster) -> None:
        self._monitor, self._cluster = monitor, cluster
        self._follow = getattr(engine, "follow", None)
        self._asked: dict[Any, list[Any]] = {}  # refs of tallies that were not collected, by worker
        self._complete: set[Any] = set()  # workers whose last ref covers all their work

    def begin(self) -> None:
        """Note that workers will get further work, which the tallies requested so far do not cover."""
        self._complete.clear()

    def ask_ahead(self) -> None:
        """Request the tallies of workers that have not ended their work. Call this when no further work will be issued."""
        if self._follow is None:
            return
        for worker in self._cluster.on_time():
            if (ref := self._follow(worker, "tally")) is not None:
                self._asked.setdefault(worker, []).append(ref)
                self._complete.add(worker)

    def collect(self, of: set[str]) -> list[Tally]:
        """Return the tallies of these workers since the last call, and remove the workers from ``of``; late workers remain."""
        asked = self._cluster.on_time(of)
        of.difference_update(worker.name for worker in asked)
        refs = []
        for worker in asked:
            refs += self._asked.pop(worker, [])
            if worker not in self._complete:
                refs.append(worker.tally())
        self._complete.difference_update(asked)
        if self._asked:
            living = set(self._cluster.workers)
            self._asked = {worker: own for worker, own in self._asked.items() if worker in living}
        return list(self._monitor.get(refs))
