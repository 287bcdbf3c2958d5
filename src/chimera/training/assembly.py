"""Assembly of a run's cluster from its settings, engine, model and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

from chimera.core.engine import Engine
from chimera.core.errors import ConfigurationError
from chimera.data.dataset import TrainingData
from chimera.data.iterable import IterableSamples
from chimera.data.provider import DataProvider, PartitionedData
from chimera.models.model import Model
from chimera.strategies.model_partition import ModelPartition, SplitPartition
from chimera.training.actors import Actors
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.cluster.sharding import Sharding
from chimera.training.experiment.resolve import provider_of
from chimera.training.experiment.settings import Settings
from chimera.training.fault_tolerance.attendance import Attendance
from chimera.training.model_parallel.actors import ACTORS, PartActors
from chimera.training.privacy.cluster import PrivateCluster


@dataclass(frozen=True)
class Assembly:
    """Builds a `TrainingCluster`.

    Attributes
    ----------
    settings : settings of the experiment.
    engine : the engine on which the actors run.
    model : the initial model.
    train : the training data.
    saved : the checkpoint from which the run resumes; None for a new run.
    """

    settings: Settings
    engine: Engine
    model: Model
    train: TrainingData
    saved: Mapping[str, Any] | None

    def cluster(self, monitor: HeartbeatMonitor) -> TrainingCluster:
        """Reserve resources for the workers, start them, and return the cluster."""
        settings, workers = self.settings, self.settings.workers
        if settings.strategy.holds(workers) is not None and (
            self.engine.nodes_own_data or hasattr(self.train, "provider")
        ):
            raise ConfigurationError(
                "this strategy computes each block on several workers, which needs a data set in memory that workers share"
            )
        parts = settings.strategy.parts(workers)
        actors = self._actors() if parts is None else self._part_actors(parts)
        actors.reserve_workers(workers)
        steps = settings.strategy.steps_per_round()
        sharding = Sharding(
            self._provider, workers, self._samples_per_round, steps, self._readers, settings.strategy.holds
        )
        kind: Callable[..., TrainingCluster] = TrainingCluster
        if settings.privacy is not None:
            kind = partial(PrivateCluster, settings.privacy, momenta=not settings.optimizer.plain)
        replicas = settings.strategy.replicas
        nodes = Attendance(self.engine)
        least = max(settings.tolerance.min_workers, nodes.least)
        absent = [rank for rank in range(workers) if nodes.least and not nodes.is_there(f"worker {rank}")]
        return kind(self.engine, actors, sharding, monitor, least, replicas=replicas, absent=absent)

    @cached_property
    def train_size(self) -> int:
        """The number of samples that workers train on; 0 if nodes own the data, whose size is not known before they start."""
        if self.engine.nodes_own_data:
            return 0
        if self.settings.test_per_client is None:
            return len(self.train)
        return cast(PartitionedData, self._provider).train_size(self.settings.workers)

    @cached_property
    def _readers(self) -> int:
        """The number of consecutive workers that read the same data."""
        parts = self.settings.strategy.parts(self.settings.workers)
        return 1 if parts is None else parts.readers

    @cached_property
    def _provider(self) -> DataProvider:
        settings = self.settings
        return provider_of(
            self.engine,
            self.train,
            settings.partition,
            workers=settings.workers // self._readers,
            batch_size=settings.batch_size,
            seed=settings.seed,
            test_share=settings.test_per_client,
        )

    @cached_property
    def _rounds(self) -> int | None:
        """The number of rounds of the run; None if it is not known in advance."""
        return self.settings.rounds(None if self.engine.nodes_own_data else self.train_size)

    def _samples_per_round(self, world_size: int) -> int:
        return self.settings.samples_per_round(world_size, self.train_size)

    def _actors(self) -> Actors:
        settings, rounds = self.settings, self._rounds
        return Actors(
            self.engine,
            self.model,
            self.train,
            optimizer=settings.optimizer.over(rounds and settings.strategy.worker_steps(rounds, settings.workers)),
            server_optimizer=settings.server_optimizer and settings.server_optimizer.over(rounds),
            codec=settings.codec,
            downlink=settings.downlink,
            seed=settings.seed,
            personal=settings.strategy.keeps(self.model),
            worker_resources=settings.worker_resources,
            server_resources=settings.server_resources,
            privacy=settings.privacy,
            loading=settings.loading,
            extensions=settings.strategy.worker_extensions,
            # A worker that waits for batches during a call lets other workers run, which would overwrite a shared model.
            shared=settings.strategy.replicas == "none" and not hasattr(self.train, "provider"),
        )

    def _part_actors(self, parts: ModelPartition | SplitPartition) -> PartActors:
        settings = self.settings
        if isinstance(self.train, IterableSamples):
            raise ConfigurationError(
                "this strategy splits batches over workers, so it needs a data set whose samples have numbers"
            )
        return ACTORS[type(parts)](
            self.engine,
            self.model,
            self.train,
            parts,
            batch_size=settings.batch_size,
            optimizer=settings.optimizer.over(self._rounds),
            seed=settings.seed,
            worker_resources=settings.worker_resources,
            server_resources=settings.server_resources,
            saved=self.saved,
        )
