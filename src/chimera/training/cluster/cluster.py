"""The cluster that a strategy drives: living workers, parameter servers, and the data assigned to each worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chimera.core.counted import counted
from chimera.core.engine import Engine
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.strategies.cluster import Announced
from chimera.training.cluster.actors import Actors
from chimera.training.cluster.groups import Groups
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.cluster.membership import Membership
from chimera.training.cluster.sharding import Sharding
from chimera.training.optimizers.schedule import Schedule
from chimera.training.worker.attack import Attack


class TrainingCluster(Membership, Groups):
    """The cluster of one run, as the trainer passes it to a strategy.

    Parameters
    ----------
    engine : the engine on which the actors run.
    actors : factory of workers and servers.
    sharding : assigns data to workers; it starts with as many workers as the cluster.
    monitor : waits for results and kills hung actors; by default it waits without a limit.
    min_workers : the run stops with fewer living workers than this.
    replicas : what workers hold of the model, see `Strategy.replicas`.
    absent : the ranks of workers that are not started now, since their nodes are not connected.

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
        self._knows_connected = None if actors.private else getattr(engine, "connected", None)
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
        """Return the parameter servers. The first call starts them."""
        if not self.shards:
            self.shards = self._actors.servers(shards)
        if len(self.shards) != shards:
            raise ConfigurationError(
                f"the checkpoint was written with {counted(len(self.shards), 'shard')}, not {shards}"
            )
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
        batches : number of batches that the call computes.
        first : index of the first of these batches; by default the worker's next batch.
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

    def make_attacker(self, worker: Any, attack: Attack) -> None:
        """Make a worker attack from its next call on, without waiting for it."""
        self.attacks[worker.name] = attack
        worker.attack(attack.kind, attack.scale)

    def connected(self, worker: Any) -> bool:
        """Return whether the engine knows that a worker is connected now. Most engines do not model absences.

        In a private run all workers count as connected: the guarantee does not cover a choice by the times at which workers are
        connected.
        """
        return self._knows_connected is None or bool(self._knows_connected(worker))

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

    def end(self) -> None:
        """Kill the actors of this run on an engine that other runs continue to use."""
        self._end_actors()
        self._sharding.provider.end()

    def _hand_out(self) -> None:
        orders = self._sharding.orders
        self.get([worker.follow(orders[self._places[worker.name]], self._sharding.since) for worker in self.workers])
