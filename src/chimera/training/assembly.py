"""What a run's cluster is made of, and how it is put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from chimera.core.engine import Engine, Resources
from chimera.data.dataset import Dataset
from chimera.data.partition import Partitioner
from chimera.models.model import Model
from chimera.strategies.strategy import Parts, Strategy
from chimera.training.actors import Actors
from chimera.training.cluster import TrainingCluster
from chimera.training.dealing import Dealing
from chimera.training.given import supply_of
from chimera.training.optimizer import OptimizerSettings
from chimera.training.privacy.cluster import PrivateCluster
from chimera.training.privacy.settings import Privacy
from chimera.training.stages import Stages, sizes_in
from chimera.training.tolerance import Tolerance
from chimera.training.watch import Watch


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The parts of a `TrainingCluster`; see `Trainer`, and the classes that they go to, for what each is.

    Attributes
    ----------
    rounds : how many the run has, if that is known.
    samples_per_round : how many samples so many workers process in a round.
    saved : the checkpoint that the run goes on from, if it does.
    """

    engine: Engine
    model: Model
    train: Dataset
    strategy: Strategy
    partition: Partitioner
    workers: int
    batch_size: int
    rounds: int | None
    samples_per_round: Callable[[int], int]
    optimizer: OptimizerSettings
    local_optimizer: OptimizerSettings
    codec: tuple[str, Mapping[str, Any]]
    downlink: tuple[str, Mapping[str, Any]]
    personal: Collection[int]
    privacy: Privacy | None
    tolerance: Tolerance
    worker_resources: Resources
    server_resources: Resources
    seed: int
    saved: Mapping[str, Any] | None

    def cluster(self, watch: Watch) -> TrainingCluster:
        """Reserve room for the workers, start them, and return the cluster."""
        actors = self._actors() if self._parts is None else self._stages(self._parts)
        actors.reserve_workers(self.workers)
        readers = 1 if self._parts is None else self._parts.stages
        supply = supply_of(
            self.engine,
            self.train,
            self.partition,
            workers=self.workers // readers,
            batch_size=self.batch_size,
            seed=self.seed,
        )
        steps = self.strategy.steps_per_round()
        dealing = Dealing(supply, self.workers, self.samples_per_round, steps, readers)
        kind = TrainingCluster if self.privacy is None else partial(PrivateCluster, self.privacy)
        least, replicas = self.tolerance.min_workers, self.strategy.replicas
        return kind(self.engine, actors, dealing, watch, least, replicas=replicas)

    @cached_property
    def _parts(self) -> Parts | None:
        return self.strategy.parts(self.workers)

    def _actors(self) -> Actors:
        return Actors(
            self.engine,
            self.model,
            self.train,
            optimizer=self.optimizer.over(self.rounds),
            local_optimizer=self.local_optimizer.over(self.rounds and self.rounds * self.strategy.steps_per_round()),
            codec=self.codec,
            downlink=self.downlink,
            seed=self.seed,
            personal=self.personal,
            worker_resources=self.worker_resources,
            server_resources=self.server_resources,
            privacy=self.privacy,
            # A worker that waits for its batches, amid a call, lets others run, who would take the object from it.
            shared=self.strategy.replicas == "none" and not hasattr(self.train, "supply"),
        )

    def _stages(self, parts: Parts) -> Stages:
        return Stages(
            self.engine,
            self.model,
            self.train,
            parts=parts,
            batch_size=self.batch_size,
            optimizer=self.optimizer.over(self.rounds),
            seed=self.seed,
            worker_resources=self.worker_resources,
            sizes=sizes_in(self.saved, parts.stages),
        )
