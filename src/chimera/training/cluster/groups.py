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
    _hosted = False  # whether workers hold the slices of the servers
    _formed: tuple[list[Any], tuple[Any, ...]] = (
        [],
        (),
    )  # actors, and their groups, which a strategy that restarts uses again

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

        In virtual time each message is modelled on its own, unless an option of the engine asks for groups. Nodes have no
        groups. The driver is also needed if messages differ from worker to worker, and in private runs, in which it counts the
        released sums.
        """
        if self._needs_driver():
            return None
        self._grouped, self._hosted = True, False
        return self._groups([*self.shards, *self.workers], 1)[0]

    def groups_with_hosted_servers(self) -> tuple[Any, Any] | None:
        """Return two groups of all living workers, for gradients and for weights, if workers can hold the servers' slices.

        Otherwise, and if there are fewer workers than servers, return None.
        """
        if self._needs_driver() or len(self.workers) < len(self.shards):
            return None
        self._grouped = self._hosted = True
        gradients, weights = self._groups(list(self.workers), 2)
        return gradients, weights

    def forget_groups(self) -> None:
        """Form new groups from now on, since a member was lost: the old groups may hold messages that no member received."""
        self._formed = [], ()

    def _groups(self, actors: list[Any], count: int) -> tuple[Any, ...]:
        """Return ``count`` groups of these actors. Members never free the memory and the connections of a group."""
        if self._formed[0] != actors or len(self._formed[1]) != count:
            self._formed = actors, tuple(self._engine.group(actors) for _ in range(count))
        return self._formed[1]

    def _needs_driver(self) -> bool:
        """Return whether a round needs the driver."""
        engine, actors = self._engine, self._actors
        return bool(not engine.servers_in_groups or actors.addressed or actors.by_rows or actors.private)

    def servers_differ(self) -> bool:
        """Return whether servers and workers of a group may have completed different numbers of rounds when a member died.

        Members that share memory agree on the sent messages. On several machines, a worker can die while it sends. If workers
        hold the slices, servers have the state before the call in which the member died, and workers have progressed.
        """
        if self._hosted:
            return True
        if not self._grouped:
            return False
        return len(set(self.get([server.rounds_served() for server in self.shards]))) > 1
