"""Groups of the workers and servers of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Groups:
    """The part of a `TrainingCluster` that forms groups."""

    shards: list[Any]
    _engine: Any
    _actors: Any
    _grouped = False  # whether servers and workers have formed a group

    @property
    def workers(self) -> list[Any]:
        """The living workers, in rank order."""
        raise NotImplementedError

    def get(self, refs: Any) -> Any:
        """Return the values of refs."""
        raise NotImplementedError

    def group(self, workers: Sequence[Any] | None = None) -> Any:
        """Return a group of ``workers``; by default of all living workers in rank order."""
        return self._engine.group(list(self.workers if workers is None else workers))

    def group_with_servers(self) -> Any:
        """Return a group of all servers and all living workers, in this order; None if rounds need the driver.

        In virtual time each message is modelled on its own. Nodes have no groups. The driver is also needed if messages differ
        from worker to worker, and in private runs, in which it counts the released sums.
        """
        engine, actors = self._engine, self._actors
        if engine.one_process or engine.nodes_own_data or actors.addressed or actors.by_rows or actors.private:
            return None
        self._grouped = True
        return engine.group([*self.shards, *self.workers])

    def servers_differ(self) -> bool:
        """Return whether servers of a group completed different numbers of rounds when a member died.

        Members that share memory agree on the sent messages. On several machines, a worker can die while it sends.
        """
        if not self._grouped:
            return False
        return len(set(self.get([server.rounds_served() for server in self.shards]))) > 1
