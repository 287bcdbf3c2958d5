"""The members of a cluster: lost actors leave it, and replacements and additional workers join it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from chimera.core.counted import counted
from chimera.core.errors import TimeLimitError, TooFewWorkersError
from chimera.training.cluster.actors import Actors
from chimera.training.cluster.edges import Edges
from chimera.training.cluster.gather import Gather
from chimera.training.cluster.state import ClusterState


class Membership(Gather, Edges, ClusterState):
    """The part of a `TrainingCluster` that removes, replaces and adds actors."""

    _actors: Actors

    @property
    def actors(self) -> list[Any]:
        """All workers, servers and edge servers."""
        return [*self.workers, *self.shards, *self.edge_servers.values()]

    @property
    def ranks(self) -> list[int]:
        """The ranks of the living workers."""
        return [self.rank_of[worker.name] for worker in self.workers]

    def reduce_rates(self, actors: Sequence[Any] | None = None) -> None:
        """Pass the present reductions of learning rates on, see `TrainingCluster`."""
        raise NotImplementedError

    def drop_lost(self) -> tuple[list[str], list[int], list[str]]:
        """Remove dead actors; return the names of the workers, the indices of the servers, and the names of edge servers."""
        dead = self._dead()
        lost = [worker.name for worker in self.workers if worker.name in dead]
        self.workers = [worker for worker in self.workers if worker.name not in dead]
        self._late = {name: ref for name, ref in self._late.items() if name not in dead}
        servers = [index for index, server in enumerate(self.shards) if server.name in dead]
        return lost, servers, self.drop_lost_edges(dead)

    def start(self, name: str) -> Any:
        """Start a replacement of a lost worker, or an additional worker, and return it. `admit` adds it to the cluster."""
        rank = self.rank_of.setdefault(name, len(self.rank_of))
        # An additional worker gets its shard when the data is divided again. It reads nothing until then.
        place = self._places.get(name, rank % len(self._sharding.orders))
        return self._actors.worker(rank, self._sharding.orders[place])

    def admit(self, worker: Any) -> None:
        """Add a started worker to the cluster. Divide the data again if the worker is additional.

        Without servers, the worker becomes a copy of the replica with the most steps, unless workers hold none. With servers,
        its local optimizer takes over the momenta of another worker: fresh moment estimates make the first steps too long, and
        would distort the mean. State that only the lost worker had is restored from the last checkpoint.

        Raises
        ------
        ActorLost : the worker or another one is dead. The worker is not part of the cluster.
        """
        if self.shards or not self.workers or self.replicas in ("parts", "none"):
            self.get(worker.go_to(self._sharding.step_of(self.round)))
            if self.shards and self.replicas != "parts":
                self._recall(worker, (self.on_time() or self.workers)[:1])
        else:
            steps = self.get([other.step() for other in self.workers])
            self.get(worker.restore(self.workers[steps.index(max(steps))].state()))
        self._restore_attack(worker)
        self.reduce_rates([worker])
        place = bisect.bisect(self.ranks, self.rank_of[worker.name])
        self.workers = [*self.workers[:place], worker, *self.workers[place:]]
        if worker.name not in self._places:
            self.reshard()

    def has_room(self, patience_s: float = 0) -> bool:
        """Return whether the engine has room for one more worker, now or within ``patience_s`` seconds."""
        try:
            self._actors.reserve_workers(1, patience_s)
        except TimeLimitError:
            return False
        return True

    def reshard(self) -> None:
        """Divide the data again among the living workers."""
        self._sharding.reshard(len(self.workers), self.round)
        self._places = {worker.name: place for place, worker in enumerate(self.workers)}
        self._hand_out()

    def respawn_server(self, index: int) -> None:
        """Replace a lost server by a new one with initial parameters. The caller restores its state."""
        self.shards[index] = self._actors.server(index, len(self.shards))

    def check_enough(self, lost: Sequence[str]) -> None:
        """Raise `TooFewWorkersError` if fewer than ``min_workers`` are left."""
        if len(self.workers) < self._min_workers:
            left = f"{counted(len(self.workers), 'worker')} left, {self._bound}"
            raise TooFewWorkersError(f"{', '.join(lost)} died; {left}" if lost else left)

    def start_over(self) -> None:
        """Replace all remaining workers and servers by new ones, as at the start of the run."""
        self.round, workers = 0, [worker.name for worker in self.workers]
        self.forget_local()
        self._end_actors()
        self.workers, self._late = [], {}
        self.shards = [self._actors.server(index, len(self.shards)) for index in range(len(self.shards))]
        self._sharding.restart()
        for name in workers:
            self.admit(self.start(name))

    def _end_actors(self) -> None:
        dead = self._dead()
        for actor in self.actors:
            if actor.name not in dead:
                self._engine.kill(actor)
        self.edge_servers = {}

    def _dead(self) -> set[str]:
        """Return the names of the dead actors of this run. The engine may also report actors of earlier runs."""
        lost = set(map(id, self._engine.lost()))
        return {actor.name for actor in self.actors if id(actor) in lost} if lost else set()
