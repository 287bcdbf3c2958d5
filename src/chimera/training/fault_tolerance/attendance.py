"""The presence of workers' nodes, on an engine whose nodes come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from chimera.core.engine import Engine


class Attendance:
    """The nodes of a run's workers. On an engine whose nodes do not come and go, each worker always has a node.

    Such an engine has these methods, see `chimera.engines.federation.engine.FederationEngine`: ``expect``, ``there`` and
    ``wait_for``, and the attribute ``min_nodes``.

    Parameters
    ----------
    engine : the engine.
    workers : names of the workers that have been started.

    Attributes
    ----------
    changes : whether nodes come and go.
    least : number of workers below which a run waits; 0 if it does not wait.
    """

    def __init__(self, engine: Engine, workers: Collection[str] = ()) -> None:
        self._engine: Any = engine
        self.changes = hasattr(engine, "there")
        self.least: int = getattr(engine, "min_nodes", None) or 0
        self._started_s = dict.fromkeys(workers, time.monotonic())

    def begin(self, workers: int) -> list[int]:
        """Wait until enough nodes are connected; return the ranks, of this number of workers, that have a node."""
        names = [f"worker {rank}" for rank in range(workers)]
        if self.changes:
            self._engine.expect(names)
        return [rank for rank, name in enumerate(names) if not self.least or self.is_there(name)]

    def is_there(self, name: str) -> bool:
        """Return whether the node of a worker is connected."""
        return not self.changes or self._engine.there(name) is not None

    def was_away(self, name: str) -> bool:
        """Return whether the node of a worker, which is connected now, came after the worker was started last."""
        since_s = self._engine.there(name) if self.changes else None
        return since_s is not None and since_s > self._started_s.get(name, 0.0)

    def started(self, name: str) -> None:
        """Note that a worker is started."""
        self._started_s[name] = time.monotonic()

    def wait(self, names: Sequence[str], stop: Callable[[], bool]) -> bool:
        """Wait until a node of these workers is connected, or ``stop`` returns true; return whether one is connected."""
        self._engine.wait_for(names, 1, stop)
        return any(map(self.is_there, names))
