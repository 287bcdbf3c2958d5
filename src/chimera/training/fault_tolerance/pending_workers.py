"""Workers that have been started and are not part of the cluster yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, PrivacyError, TimeLimitError
from chimera.engines.http.failure import Refusal
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor


class PendingWorkers:
    """Starts workers, and admits each once it is up, so that a run need not wait while a process starts for seconds."""

    def __init__(self, engine: Engine, cluster: TrainingCluster, monitor: HeartbeatMonitor) -> None:
        self._engine, self._cluster, self._monitor = engine, cluster, monitor
        self._starting: dict[str, tuple[Any, Any]] = {}  # the worker, and a ref that is done when the worker is up

    def __len__(self) -> int:
        """The number of workers that are starting."""
        return len(self._starting)

    def start(self, name: str) -> None:
        """Start a replacement of the lost worker with this name, or an additional worker."""
        worker = self._cluster.start(name)
        self._starting[name] = worker, worker.step()

    def admit(self, patience_s: float) -> Iterator[tuple[str, str]]:
        """Admit the workers that are up within ``patience_s``; yield each name, with the reason if the worker was lost.

        With infinite ``patience_s``, wait until one is up.

        Raises
        ------
        ActorLost : a worker of the cluster died meanwhile.
        """
        if not self._starting:
            return
        try:
            refs = [ref for _, ref in self._starting.values()]
            if patience_s == math.inf:
                self._monitor.wait(refs)
            else:
                self._monitor.wait(refs, len(refs), patience_s)
        except TimeLimitError as error:  # raised by the engine: it has no room for a worker
            for name, (worker, _) in list(self._starting.items()):
                self._engine.kill(worker)
                del self._starting[name]
                yield name, str(error)
            return
        for name, (worker, ref) in list(self._starting.items()):
            if not self._engine.wait([ref], timeout_s=0)[0]:
                continue
            try:
                self._cluster.admit(worker)
            except (PrivacyError, Refusal) as error:  # its node refuses it, which must not end the run
                self._engine.kill(worker)
                del self._starting[name]
                yield name, str(error)
            except ActorLost as error:
                if not any(worker is lost for lost in self._engine.lost()):
                    raise  # the new worker stays, and is admitted at the next attempt
                del self._starting[name]
                yield name, str(error)
            else:
                del self._starting[name]
                yield name, ""

    def end(self) -> None:
        """Kill the workers that were not admitted."""
        lost = set(map(id, self._engine.lost()))
        for worker, _ in self._starting.values():
            if id(worker) not in lost:
                self._engine.kill(worker)
        self._starting.clear()
