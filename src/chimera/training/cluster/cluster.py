"""The cluster that a strategy drives: living workers, parameter servers, and the data assigned to each worker."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from chimera.core.engine import Engine
from chimera.core.errors import ConfigurationError, TimeLimitError, TooFewWorkersError
from chimera.core.parameters import Flat
from chimera.strategies.cluster import Announced
from chimera.training.cluster.edges import Edges
from chimera.training.cluster.gather import Gather
from chimera.training.cluster.groups import Groups
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.cluster.sharding import Sharding
from chimera.training.cluster.state import ClusterState
from chimera.training.optimizers.schedule import Schedule
from chimera.training.worker.attack import Attack


class Actors(Protocol):
    """A factory of the actors of a run.

    Attributes
    ----------
    addressed, by_rows : how servers send weights, see `TrainingCluster.addressed`.
    private : whether the run is private.
    schedules : schedules of the optimizers of new actors, of which the driver reduces those that are plateaus.
    bounds : indices of the first layers of all stages but the first, where the model is split by measured cost. Measured
        costs vary, so a resumed run takes these from the checkpoint.
    """

    addressed: bool
    by_rows: bool
    private: bool = False
    schedules: Sequence[Schedule] = ()
    bounds: Sequence[int] = ()

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""

    def worker(self, rank: int, order: Any) -> Any:
        """Start the worker of a rank."""

    def announce(self, work: Mapping[int, Announced]) -> None:  # noqa: ARG002 - most workers take steps alone
        """Announce the steps that workers will take, see `TrainingCluster.announce`, by rank; by default do nothing."""
        return

    def servers(self, shards: int) -> list[Any]:
        """Start all servers."""

    def server(self, index: int, shards: int) -> Any:
        """Start one server with the initial parameters."""

    def edge(self, number: int) -> Any:
        """Start one edge server."""
        raise ConfigurationError(f"there is no edge server {number} where the model is cut, or nodes have their own")

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Return the parameters of the whole model, shape (P,), from its pieces; by default, concatenate them.

        Without ``out`` the result is read-only, or a single piece itself, so that a checkpoint need not copy it.
        """
        if out is None and len(pieces) == 1:
            return pieces[0]
        whole = np.concatenate(pieces, out=out)
        whole.flags.writeable = out is not None
        return whole

    def joined_buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Return the buffers of the whole model from those of its parts."""
        return np.concatenate(pieces)


class TrainingCluster(Gather, Groups, Edges, ClusterState):
    """The cluster of one run, as the trainer passes it to a strategy.

    Parameters
    ----------
    engine : where the actors run.
    actors : factory of workers and servers.
    sharding : assigns data to workers; it starts with as many workers as the cluster.
    monitor : waits for results and kills hung actors; by default it waits without a limit.
    min_workers : the run stops with fewer living workers than this.
    replicas : what workers hold of the model, see `Strategy.replicas`.
    absent : the ranks of workers that are not started now, since their nodes are not there.

    Attributes
    ----------
    workers, shards : living workers in rank order, and the parameter servers.
    rank_of : the rank of each worker that the run has had, by name.
    attacks : attack of each attacking worker, by name. A worker that is respawned under that name attacks too.
    released_sums : in a private run, for each sum that was unmasked: its noise multiplier and the share of clients in it.
    """

    _engine: Engine
    _actors: Actors

    def __init__(
        self,
        engine: Engine,
        actors: Actors,
        sharding: Sharding,
        monitor: HeartbeatMonitor | None = None,
        min_workers: int = 1,
        *,
        replicas: str = "equal",
        absent: Collection[int] = (),
    ) -> None:
        self.replicas = replicas
        self._actors, self._sharding = actors, sharding
        self.start_gathering(engine, monitor or HeartbeatMonitor(engine), min_workers)
        orders = list(enumerate(sharding.orders))
        started = {rank: actors.worker(rank, order) for rank, order in orders if rank not in absent}
        self.workers = list(started.values())
        self.forget_local()
        self.rank_of = {started[rank].name if rank in started else f"worker {rank}": rank for rank, _ in orders}
        self._places = dict(self.rank_of)  # index into the orders of the sharding
        self.shards: list[Any] = []
        self.edge_servers: dict[int, Any] = {}
        self.edge_names: set[str] = set()
        self.attacks: dict[str, Attack] = {}
        self.released_sums: list[tuple[float, float]] = []
        self.round, self.horizon = 0, 1
        self._session = (
            0  # incremented when a strategy starts: servers then assume that workers hold no earlier weights
        )

    @property
    def actors(self) -> list[Any]:
        """All workers, servers and edge servers."""
        return [*self.workers, *self.shards, *self.edge_servers.values()]

    @property
    def ranks(self) -> list[int]:
        """The ranks of the living workers."""
        return [self.rank_of[worker.name] for worker in self.workers]

    @property
    def names(self) -> list[str]:
        """The names of all workers that the run has had, in rank order."""
        return list(self.rank_of)

    @property
    def orders(self) -> list[Any]:
        """The order in which each worker of `sharded_workers` reads its rows."""
        return self._sharding.orders

    @property
    def sharded_workers(self) -> list[str]:
        """The names of the workers that the data is divided among, in the order of their shards; some may be lost."""
        return sorted(self._places, key=self._places.__getitem__)

    def servers(self, shards: int) -> list[Any]:
        """Return the parameter servers. They are started at the first call."""
        if not self.shards:
            self.shards = self._actors.servers(shards)
        if len(self.shards) != shards:
            raise ConfigurationError(f"the checkpoint was written with {len(self.shards)} shards, not {shards}")
        self._session += 1
        return self.shards

    def addressed(
        self, worker: Any, weights: Sequence[Any], batches: int = 1, shard: int | None = None, first: int | None = None
    ) -> Sequence[Any]:
        """Return the newest weights in the form that this worker receives them with its next call.

        Parameters
        ----------
        worker : the receiver.
        weights : refs of the weights of all servers, or of one ``shard``, for receivers that all get the same.
        batches : how many batches the call computes.
        first : index of the first of these batches; by default the worker's next one.
        """
        if self._actors.by_rows:
            wanted = worker.wanted(len(self.shards), batches, first, returns=len(self.shards))
            return [server.rows(numbers) for server, numbers in zip(self.shards, wanted, strict=True)]
        if not self._actors.addressed:
            return weights
        servers = self.shards if shard is None else [self.shards[shard]]
        return [server.message(worker.name, self._session) for server in servers]

    def announce(self, work: Mapping[str, Announced]) -> None:
        """Announce the local steps of each worker in the next calls, by name."""
        self._actors.announce({self.rank_of[name]: steps for name, steps in work.items()})

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Return the parameters of the whole model, shape (P,), from its pieces; in ``out`` if it is given."""
        return self._actors.joined(pieces, out)

    def joined_buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Return the buffers of the whole model from those of its parts."""
        return self._actors.joined_buffers(pieces)

    def get(self, refs: Any) -> Any:
        """Return the values of refs."""
        return self._monitor.get(refs)

    @property
    def cut(self) -> list[int]:
        """The indices of the layers before which the model is split."""
        return list(self._actors.bounds)

    @property
    def schedules(self) -> Sequence[Schedule]:
        """The schedules of the run's optimizers, as new actors receive them."""
        return self._actors.schedules

    def reduce_rates(self, actors: Sequence[Any] | None = None) -> None:
        """Give these actors, by default all, the present reductions of plateau schedules, if there is any such schedule."""
        if any(schedule.decay == "plateau" for schedule in self.schedules):
            factors = [schedule.reduction[0] for schedule in self.schedules]
            called = [*self.workers, *self.shards] if actors is None else actors
            self.get([actor.reduce_rates(*factors) for actor in called])

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
        its local optimizer takes over the momenta of another worker: fresh moment estimates make the first steps too long,
        which would distort the mean. State that only the lost worker had is restored from the last checkpoint.

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
        self._remind(worker)
        self.reduce_rates([worker])
        place = bisect.bisect(self.ranks, self.rank_of[worker.name])
        self.workers = [*self.workers[:place], worker, *self.workers[place:]]
        if worker.name not in self._places:
            self.reshard()

    def make_attacker(self, worker: Any, attack: Attack) -> None:
        """Make a worker attack from its next call on, without waiting for it."""
        self.attacks[worker.name] = attack
        worker.attack(attack.kind, attack.scale)

    def connected(self, worker: Any) -> bool:
        """Return whether the engine knows that a worker is connected now. Most engines do not model absences.

        In a private run all workers count as connected: the guarantee does not cover a choice by the times at which they are.
        """
        known = getattr(self._engine, "connected", None)
        return known is None or self._actors.private or bool(known(worker))

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

    @property
    def feeders(self) -> list[Any]:
        """The actors that prepare the workers' data, if the data set has any."""
        return self._sharding.provider.actors

    def replace_lost_feeders(self) -> list[str]:
        """Replace dead actors that prepare data, notify the workers, and return the names of those actors."""
        if names := self._sharding.replace_lost():
            self._hand_out()
        return names

    def queue_fill(self) -> dict[str, float]:
        """Return the fill of each worker's input queue, 0 to 1, where it is known without waiting."""
        return self._sharding.provider.fill()

    def respawn_server(self, index: int) -> None:
        """Replace a lost server by a new one with initial parameters. The caller restores its state."""
        self.shards[index] = self._actors.server(index, len(self.shards))

    def check_enough(self, lost: Sequence[str]) -> None:
        """Raise `TooFewWorkersError` if fewer than ``min_workers`` are left."""
        if len(self.workers) < self._min_workers:
            left = f"{len(self.workers)} workers are left, {self._bound}"
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

    def end(self) -> None:
        """Kill the actors of this run on an engine that other runs continue to use."""
        self._end_actors()
        self._sharding.provider.end()

    def _end_actors(self) -> None:
        dead = self._dead()
        for actor in self.actors:
            if actor.name not in dead:
                self._engine.kill(actor)
        self.edge_servers = {}

    def _hand_out(self) -> None:
        orders = self._sharding.orders
        self.get([worker.follow(orders[self._places[worker.name]], self._sharding.since) for worker in self.workers])

    def _dead(self) -> set[str]:
        """Return the names of the dead actors of this run. The engine may also report actors of earlier runs."""
        lost = set(map(id, self._engine.lost()))
        return {actor.name for actor in self.actors if id(actor) in lost} if lost else set()
