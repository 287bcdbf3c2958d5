"""The engine as a strategy sees it: living workers, servers, and who is late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from chimera.core.engine import Engine
from chimera.core.errors import ConfigurationError, TimeLimitError, TooFewWorkersError
from chimera.core.parameters import Flat
from chimera.training.cluster.gather import Asking
from chimera.training.cluster.heartbeat import Watch
from chimera.training.cluster.sharding import Dealing
from chimera.training.cluster.snapshot import Holdings
from chimera.training.worker.attack import Attack


class Actors(Protocol):
    """What makes the actors; ``addressed`` and ``by_rows`` say what servers send, see `TrainingCluster.addressed`.

    ``bounds`` are the numbers of the layers before which a model was cut by its cost, which may be another tomorrow.
    """

    addressed: bool
    by_rows: bool
    bounds: Sequence[int] = ()

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""

    def worker(self, rank: int, order: Any) -> Any:
        """Start the worker of a rank."""

    def servers(self, shards: int) -> list[Any]:
        """Start all servers."""

    def server(self, index: int, shards: int) -> Any:
        """Start one server, as new."""

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Return the parameters of the whole model, shape (P,), from the pieces; by default they lie one behind another."""
        return np.concatenate(pieces, out=out)

    def joined_buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Return the buffers of the whole model from those of its parts."""
        return np.concatenate(pieces)


class TrainingCluster(Asking, Holdings):
    """What the trainer hands to a strategy.

    Parameters
    ----------
    engine : where the actors run.
    actors : makes them.
    dealing : says which data each worker reads; it begins with as many workers as the cluster.
    watch : waits for them; by default with patience for any time.
    min_workers : with fewer living workers than this, the run stops.
    replicas : what workers hold of the model, see `Strategy.replicas`.

    Attributes
    ----------
    workers, shards : the living learners in rank order, and the parameter shards.
    names : of all workers there ever were.
    attacks : what those do who attack, by their names. It goes with the name: who is respawned as one of them attacks too.
    let_out : of a private run, the noise multiplier of each sum that masks were taken from, and the share of the clients.
    """

    def __init__(
        self,
        engine: Engine,
        actors: Actors,
        dealing: Dealing,
        watch: Watch | None = None,
        min_workers: int = 1,
        *,
        replicas: str = "equal",
    ) -> None:
        self.replicas = replicas
        self._actors, self._dealing = actors, dealing
        self.begin_asking(engine, watch or Watch(engine), min_workers)
        self.workers = [actors.worker(rank, order) for rank, order in enumerate(dealing.orders)]
        self.forget_local()
        self.names = [worker.name for worker in self.workers]
        self._places = {name: place for place, name in enumerate(self.names)}  # in the dealing
        self.shards: list[Any] = []
        self.attacks: dict[str, Attack] = {}
        self.let_out: list[tuple[float, float]] = []
        self.round, self.horizon = 0, 1
        self._session = 0  # how often a strategy began: then workers have nothing that servers know of

    @property
    def ranks(self) -> list[int]:
        """The numbers of the living workers."""
        return [self.names.index(worker.name) for worker in self.workers]

    @property
    def dealt(self) -> list[str]:
        """The names of those among whom the data is dealt, by their places in that; some may be gone."""
        return sorted(self._places, key=self._places.__getitem__)

    def servers(self, shards: int) -> list[Any]:
        """Return the parameter shards; the same ones each time."""
        if not self.shards:
            self.shards = self._actors.servers(shards)
        if len(self.shards) != shards:
            raise ConfigurationError(f"the checkpoint was written with {len(self.shards)} shards, not {shards}")
        self._session += 1
        return self.shards

    def addressed(
        self, worker: Any, weights: Sequence[Any], batches: int = 1, shard: int | None = None, first: int | None = None
    ) -> Sequence[Any]:
        """Return the newest ``weights`` as this worker is to get them, in its next call, which computes so many batches.

        They are those of all servers, or of one ``shard``; the batches the next ones, or those from the number ``first`` on.
        """
        if self._actors.by_rows:
            wanted = worker.wanted(len(self.shards), batches, first, returns=len(self.shards))
            return [server.rows(numbers) for server, numbers in zip(self.shards, wanted, strict=True)]
        if not self._actors.addressed:
            return weights
        servers = self.shards if shard is None else [self.shards[shard]]
        return [server.message(worker.name, self._session) for server in servers]

    def group(self, workers: Sequence[Any] | None = None) -> Any:
        """Return a group of ``workers``, by default of all that live, in rank order."""
        return self._engine.group(list(self.workers if workers is None else workers))

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Return the parameters of the whole model, shape (P,), in ``out`` if given, from the pieces that there are."""
        return self._actors.joined(pieces, out)

    def joined_buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Return the buffers of the whole model from those of its parts."""
        return self._actors.joined_buffers(pieces)

    def get(self, refs: Any) -> Any:
        """Return values to the driver."""
        return self._watch.get(refs)

    @property
    def cut(self) -> list[int]:
        """The numbers of the layers before which the model is cut."""
        return list(self._actors.bounds)

    def drop_lost(self) -> tuple[list[str], list[int]]:
        """Leave out the workers that are dead; return their names, and which servers are."""
        dead = self._dead()
        lost = [worker.name for worker in self.workers if worker.name in dead]
        self.workers = [worker for worker in self.workers if worker.name not in dead]
        self._late = {name: ref for name, ref in self._late.items() if name not in dead}
        return lost, [index for index, server in enumerate(self.shards) if server.name in dead]

    def start(self, name: str) -> Any:
        """Start a worker in the place of a lost one, or one more, and return it; `admit` makes it part of the cluster."""
        if name not in self.names:
            self.names.append(name)
        rank = self.names.index(name)
        # One more has nothing to read until the data is dealt anew; anything does until then.
        place = self._places.get(name, rank % len(self._dealing.orders))
        return self._actors.worker(rank, self._dealing.orders[place])

    def admit(self, worker: Any) -> None:
        """Let a worker in; where there are no servers, as a copy of the furthest. One more gets its share of the data.

        Where there are, its local optimizer takes over what another's remembers: one that begins anew steps far too long at
        first, and would spoil the mean. What only the lost one knew comes back as it was at the last checkpoint.

        Raises
        ------
        ActorLost : it is dead, or one of the others is; it is not part of the cluster.
        """
        if self.shards or not self.workers or self.replicas == "parts":
            self.get(worker.go_to(self._dealing.step_of(self.round)))
            if self.shards and self.replicas != "parts":
                self._recall(worker, (self.on_time() or self.workers)[:1])
        else:
            steps = self.get([other.step() for other in self.workers])
            self.get(worker.restore(self.workers[steps.index(max(steps))].state()))
        self._remind(worker)
        rank = self.names.index(worker.name)
        place = sum(self.names.index(other.name) < rank for other in self.workers)
        self.workers.insert(place, worker)
        if worker.name not in self._places:
            self.deal()

    def turn(self, worker: Any, attack: Attack) -> None:
        """Let a worker attack from its next call on; nothing is waited for."""
        self.attacks[worker.name] = attack
        worker.attack(attack.kind, attack.scale)

    def has_room(self, patience_s: float = 0) -> bool:
        """Return whether one more worker would find its place now, or within so many seconds."""
        try:
            self._actors.reserve_workers(1, patience_s)
        except TimeLimitError:
            return False
        return True

    def deal(self) -> None:
        """Part the data anew among the workers that are there."""
        self._dealing.deal(len(self.workers), self.round)
        self._places = {worker.name: place for place, worker in enumerate(self.workers)}
        self._hand_out()

    @property
    def feeders(self) -> list[Any]:
        """The actors that prepare the workers' data, if there are any."""
        return self._dealing.supply.actors

    def mend_supply(self) -> list[str]:
        """Start anew what prepares the workers' data and has died, tell the workers, and return its names."""
        if names := self._dealing.mend():
            self._hand_out()
        return names

    def supply_fill(self) -> dict[str, float]:
        """Return how full each queue before the workers is, 0 to 1, as far as that is known without waiting."""
        return self._dealing.supply.fill()

    def respawn_server(self, index: int) -> None:
        """Start a server in the place of a lost one, as new: it needs its state."""
        self.shards[index] = self._actors.server(index, len(self.shards))

    def check_enough(self, lost: Sequence[str]) -> None:
        """Raise `TooFewWorkersError` if fewer than ``min_workers`` are left."""
        if len(self.workers) < self._min_workers:
            left = f"{len(self.workers)} workers are left, fewer than min_workers = {self._min_workers}"
            raise TooFewWorkersError(f"{', '.join(lost)} died; {left}" if lost else left)

    def start_over(self) -> None:
        """Make every worker and server that is left as it was at the very beginning."""
        self.round, workers = 0, [worker.name for worker in self.workers]
        self.forget_local()
        self._end_actors()
        self.workers, self._late = [], {}
        self.shards = [self._actors.server(index, len(self.shards)) for index in range(len(self.shards))]
        self._dealing.restart()
        for name in workers:
            self.admit(self.start(name))

    def end(self) -> None:
        """Kill the actors of this run, on an engine that lives on."""
        self._end_actors()
        self._dealing.supply.end()

    def _end_actors(self) -> None:
        dead = self._dead()
        for actor in (*self.workers, *self.shards):
            if actor.name not in dead:
                self._engine.kill(actor)

    def _hand_out(self) -> None:
        orders = self._dealing.orders
        self.get([worker.follow(orders[self._places[worker.name]], self._dealing.since) for worker in self.workers])

    def _dead(self) -> set[str]:
        """Return the names of those actors of this run that are dead; the engine may have run others before."""
        lost = set(map(id, self._engine.lost()))
        return {actor.name for actor in (*self.workers, *self.shards) if id(actor) in lost} if lost else set()
