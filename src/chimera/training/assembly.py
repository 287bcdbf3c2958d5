"""What a run's cluster is made of, and how it is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset
from chimera.models.model import Model
from chimera.strategies.parts import Halves, Parts
from chimera.training.actors import Actors
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import Watch
from chimera.training.cluster.sharding import Dealing
from chimera.training.experiment.resolve import supply_of
from chimera.training.experiment.settings import Settings
from chimera.training.model_parallel.actors import ACTORS, PartActors
from chimera.training.privacy.cluster import PrivateCluster


@dataclass(frozen=True)
class Assembly:
    """The parts of a `TrainingCluster`.

    Attributes
    ----------
    settings : of the experiment.
    engine : where the actors run.
    model : what all begin with.
    train : the training data.
    saved : the checkpoint that the run goes on from, if it does.
    """

    settings: Settings
    engine: Engine
    model: Model
    train: Dataset
    saved: Mapping[str, Any] | None

    def cluster(self, watch: Watch) -> TrainingCluster:
        """Reserve room for the workers, start them, and return the cluster."""
        given, workers = self.settings, self.settings.workers
        if given.strategy.holds(workers) is not None and (self.engine.nodes_own_data or hasattr(self.train, "supply")):
            raise ConfigurationError(
                "workers that hold the data of others need data in memory, which can be given to several"
            )
        parts = given.strategy.parts(workers)
        actors = self._actors() if parts is None else self._part_actors(parts)
        actors.reserve_workers(workers)
        readers = 1 if parts is None else parts.readers
        supply = supply_of(
            self.engine,
            self.train,
            given.partition,
            workers=workers // readers,
            batch_size=given.batch_size,
            seed=given.seed,
        )
        steps = given.strategy.steps_per_round()
        dealing = Dealing(supply, workers, self._samples_per_round, steps, readers, given.strategy.holds)
        kind: Callable[..., TrainingCluster] = TrainingCluster
        if given.privacy is not None:
            kind = partial(PrivateCluster, given.privacy, momenta=not given.local_optimizer.plain)
        least, replicas = given.tolerance.min_workers, given.strategy.replicas
        return kind(self.engine, actors, dealing, watch, least, replicas=replicas)

    @cached_property
    def _rounds(self) -> int | None:
        """How many rounds the run has, if that is known."""
        size = None if self.engine.nodes_own_data else len(self.train)
        return self.settings.budget.rounds_in_all(size, self._samples_per_round(self.settings.workers))

    def _samples_per_round(self, world_size: int) -> int:
        # Of the nodes' own data nobody knows how much there is before they are there.
        return self.settings.samples_per_round(world_size, 0 if self.engine.nodes_own_data else len(self.train))

    def _actors(self) -> Actors:
        given, rounds = self.settings, self._rounds
        return Actors(
            self.engine,
            self.model,
            self.train,
            optimizer=given.optimizer.over(rounds),
            local_optimizer=given.local_optimizer.over(rounds and rounds * given.strategy.steps_per_round()),
            codec=given.codec,
            downlink=given.downlink,
            seed=given.seed,
            personal=given.strategy.keeps(self.model),
            worker_resources=given.worker_resources,
            server_resources=given.server_resources,
            privacy=given.privacy,
            # A worker that waits for its batches, amid a call, lets others run, who would take the object from it.
            shared=given.strategy.replicas == "none" and not hasattr(self.train, "supply"),
        )

    def _part_actors(self, parts: Parts | Halves) -> PartActors:
        given = self.settings
        return ACTORS[type(parts)](
            self.engine,
            self.model,
            self.train,
            parts,
            batch_size=given.batch_size,
            optimizer=given.optimizer.over(self._rounds),
            seed=given.seed,
            worker_resources=given.worker_resources,
            server_resources=given.server_resources,
            saved=self.saved,
        )
