"""Workers that have been started and are not part of the cluster yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, TimeLimitError
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import Watch


class Recruits:
    """Starts workers, and lets them in once they stand, so that nobody waits for a process that takes seconds to start."""

    def __init__(self, engine: Engine, cluster: TrainingCluster, watch: Watch) -> None:
        self._engine, self._cluster, self._watch = engine, cluster, watch
        self._starting: dict[str, tuple[Any, Any]] = {}  # the worker, and a ref that says that it stands

    def __len__(self) -> int:
        """How many have been started and are not there yet."""
        return len(self._starting)

    def start(self, name: str) -> None:
        """Start a worker in the place of the one of this name that is gone, or a new one."""
        worker = self._cluster.start(name)
        self._starting[name] = worker, worker.step()

    def admit(self, patience_s: float) -> Iterator[tuple[str, str]]:
        """Let those in who stand, after waiting so long for all of them; yield each name, and why it did not come if so.

        With endless patience, one of them is enough.

        Raises
        ------
        ActorLost : one of those who were there died meanwhile.
        """
        if not self._starting:
            return
        try:
            refs = [ref for _, ref in self._starting.values()]
            if patience_s == math.inf:
                self._watch.wait(refs)
            else:
                self._watch.wait(refs, len(refs), patience_s)
        except TimeLimitError as error:  # the engine's own: it has no room for somebody
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
            except ActorLost as error:
                if not any(worker is lost for lost in self._engine.lost()):
                    raise  # it stays, for the next try
                del self._starting[name]
                yield name, str(error)
            else:
                del self._starting[name]
                yield name, ""

    def end(self) -> None:
        """Kill those who have not come in."""
        lost = set(map(id, self._engine.lost()))
        for worker, _ in self._starting.values():
            if id(worker) not in lost:
                self._engine.kill(worker)
        self._starting.clear()
