"""Actors of a run with a partitioned model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.batch import pair_of
from chimera.core.engine import Engine, Resources
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.data.dataset import RowData
from chimera.data.order import Order
from chimera.models.device import GPU
from chimera.models.model import Model
from chimera.strategies.model_partition import ModelPartition, SplitPartition
from chimera.training.cluster.actors import Actors
from chimera.training.model_parallel.part_layout import JoinedLayout
from chimera.training.model_parallel.partitioning import Part, cut, split_model
from chimera.training.model_parallel.split_learning import SplitClient, SplitServer
from chimera.training.model_parallel.stage import Stage
from chimera.training.optimizers.optimizer import OptimizerSettings


class PartActors(Actors, ABC):
    """Creates actors that hold one part of the model each, as `Actors` creates actors with the whole model.

    Parameters
    ----------
    model : the model to partition; only its parts are sent.
    train : the data; sent only to actors that read inputs or targets.
    parts : the partition of the model.
    batch_size : batch size of workers that read the same data.
    saved : the checkpoint that the run resumes from, if any. The checkpoint fixes the partition, because measured costs may
        differ now.

    Raises
    ------
    ConfigurationError : the model cannot be partitioned in this way.
    """

    addressed = by_rows = False

    def __init__(
        self,
        engine: Engine,
        model: Model,
        train: RowData,
        parts: Any,
        *,
        batch_size: int,
        optimizer: OptimizerSettings,
        seed: int,
        worker_resources: Resources,
        server_resources: Resources,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        if engine.nodes_own_data:
            raise ConfigurationError(
                "this strategy sends parts of the model to the workers, but the nodes of this engine have their own models"
            )
        if optimizer.max_gradient_norm is not None:
            raise ConfigurationError(
                "max_gradient_norm: each worker holds a part of the model, not the norm of the whole gradient: leave it out"
            )
        self._engine, self._batch_size, self._resources = engine, batch_size, worker_resources
        self._server_resources, self._parts = server_resources, parts
        self.schedules = (optimizer.schedule,)
        self._common: dict[str, Any] = {"optimizer": optimizer, "seed": seed}
        made = self.cut(model, train, saved)
        self._cut, self._joint = [engine.put(part) for part in made], JoinedLayout(model, made)
        self._dataset = engine.put(train)

    @abstractmethod
    def cut(self, model: Model, train: RowData, saved: Mapping[str, Any] | None) -> list[Part]:
        """Return the parts."""

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""
        self._engine.reserve([self._resources] * count, timeout_s)

    @abstractmethod
    def worker(self, rank: int, order: Order) -> Any:
        """Start the worker of a rank."""

    def servers(self, shards: int) -> list[Any]:
        """Raise ConfigurationError: there are no servers."""
        raise ConfigurationError(f"there is no server for {shards} shards: the workers hold the parameters")

    def server(self, index: int, shards: int) -> Any:
        """Raise ConfigurationError: there are no servers."""
        return self.servers(shards)[index]

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Join the parameters of the parts to those of the whole model."""
        return self._joint.parameters(pieces, out)

    def joined_buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Join the buffers of the parts to those of the whole model."""
        return self._joint.buffers(pieces)

    def _spawned(self, kind: Any, rank: int, *given: Any, **more: Any) -> Any:
        return self._engine.spawn(
            kind,
            rank,
            *given,
            **self._common,
            **more,
            device=GPU if self._resources.gpus else None,
            resources=self._resources,
            name=f"worker {rank}",
        )


class Stages(PartActors):
    """Creates the workers of pipelines. The first stage gets the data for the inputs, the last one for the targets."""

    _parts: ModelPartition

    def cut(self, model: Model, train: RowData, saved: Mapping[str, Any] | None) -> list[Part]:
        """Return parts of equal cost."""
        micro_batches = self._parts.micro_batches
        if self._batch_size < micro_batches:
            raise ConfigurationError(f"a batch of {self._batch_size} cannot be cut into {micro_batches} micro-batches")
        rows = np.arange(min(max(self._batch_size // micro_batches, 1), len(train)))
        few = pair_of(train.take(rows), "a pipeline")[0]
        made = cut(model, self._parts, few, saved["cluster"].get("cut") if saved else None)
        self.bounds = [0, *(part.layers[-1] + 1 for part in made[:: self._parts.slices])]
        return made

    def worker(self, rank: int, order: Order) -> Any:
        """Start the worker of a rank."""
        part = rank % self._parts.readers
        dataset = self._dataset if part // self._parts.slices in (0, self._parts.stages - 1) else None
        return self._spawned(Stage, rank, self._cut[part], dataset, order, parts=self._parts)


class Sides(PartActors):
    """Creates the clients of split learning and their server, which gets no data."""

    _parts: SplitPartition

    def cut(self, model: Model, train: RowData, saved: Mapping[str, Any] | None) -> list[Part]:  # noqa: ARG002 - cut by number
        """Return the clients' part and the server's part."""
        return split_model(model, self._parts)

    def worker(self, rank: int, order: Order) -> Any:
        """Start the client of a rank."""
        return self._spawned(SplitClient, rank, self._cut[0], self._dataset, order, halves=self._parts)

    def servers(self, shards: int) -> list[Any]:
        """Start the server."""
        self._engine.reserve([self._server_resources] * shards)
        return [self.server(index, shards) for index in range(shards)]

    def server(self, index: int, shards: int) -> Any:  # noqa: ARG002 - there is only one
        """Start the server, with the initial parameters."""
        return self._engine.spawn(
            SplitServer, self._cut[1], **self._common, resources=self._server_resources, name=f"server {index}"
        )


ACTORS: Mapping[type[ModelPartition] | type[SplitPartition], type[PartActors]] = {
    ModelPartition: Stages,
    SplitPartition: Sides,
}
