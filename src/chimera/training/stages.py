"""The actors of a run whose model is cut over its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.engine import Engine, Resources
from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import GPU
from chimera.models.model import Model
from chimera.strategies.strategy import Parts
from chimera.training.cutting import cut
from chimera.training.optimizer import OptimizerSettings
from chimera.training.stage import Stage


class Stages:
    """Makes workers that hold a part of the model each, as `Actors` makes those that hold all of it.

    Parameters
    ----------
    model : what is cut; only its parts travel.
    train : the data; the first stage gets it for its inputs, and the last one for its targets.
    parts : how the model is cut.
    batch_size : of a pipeline.
    sizes : how many parameters each part has, if a checkpoint says so.

    Raises
    ------
    ConfigurationError : the model cannot be cut so.
    """

    addressed = by_rows = False

    def __init__(
        self,
        engine: Engine,
        model: Model,
        train: Dataset,
        *,
        parts: Parts,
        batch_size: int,
        optimizer: OptimizerSettings,
        seed: int,
        worker_resources: Resources,
        sizes: Sequence[int] | None = None,
    ) -> None:
        if engine.nodes_own_data:
            raise ConfigurationError(
                "a pipeline sends each worker its part of the model; here the nodes have their own"
            )
        if batch_size < parts.micro_batches:
            raise ConfigurationError(f"a batch of {batch_size} cannot be cut into {parts.micro_batches} micro-batches")
        few = train.inputs[: max(batch_size // parts.micro_batches, 1)]
        self._engine, self._parts, self._optimizer, self._seed = engine, parts, optimizer, seed
        self._resources = worker_resources
        self._cut = [engine.put(part) for part in cut(model, parts, few, sizes)]
        self._dataset = engine.put(train)

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""
        self._engine.reserve([self._resources] * count, timeout_s)

    def worker(self, rank: int, order: Order) -> Any:
        """Start the worker of a rank."""
        stage = rank % self._parts.stages
        return self._engine.spawn(
            Stage,
            rank,
            self._cut[stage],
            self._dataset if stage in (0, self._parts.stages - 1) else None,
            order,
            parts=self._parts,
            optimizer=self._optimizer,
            seed=self._seed,
            device=GPU if self._resources.gpus else None,
            resources=self._resources,
            name=f"worker {rank}",
        )

    def servers(self, shards: int) -> list[Any]:
        """Refuse."""
        raise ConfigurationError(f"there is no server for {shards} shards: the parameters are the stages'")

    def server(self, index: int, shards: int) -> Any:
        """Refuse."""
        return self.servers(shards)[index]


def sizes_in(saved: Mapping[str, Any] | None, stages: int) -> list[int] | None:
    """Return how many parameters each part has in a checkpoint; the cut was measured, maybe, and would be another today."""
    if saved is None:
        return None
    replicas = saved["cluster"]["replicas"]
    return [replicas[f"worker {stage}"]["weights"].size for stage in range(stages) if f"worker {stage}" in replicas]
