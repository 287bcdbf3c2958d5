"""The actors of a run: its workers and servers, as they are made."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from chimera.codecs.codec import CODECS
from chimera.core.engine import Engine, Resources
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.data.dataset import Dataset
from chimera.data.order import Order
from chimera.models.device import GPU, check_movable
from chimera.models.model import Model
from chimera.models.pickling import ensure_picklable
from chimera.models.shared import Shared, SharedModel
from chimera.training.cluster import cluster
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.learner import Learner
from chimera.training.worker.personal_parameters import SharedPart
from chimera.training.worker.remote_learner import Counterpart
from chimera.training.worker.sparse_rows import check_rows


class Actors(cluster.Actors):
    """Makes workers and servers on an engine.

    Parameters
    ----------
    engine : where they run.
    model : what all begin with.
    train : the data of the workers; put once and shared. Where nodes own the data, model and data are told to the workers
        as a `Counterpart`, and not sent.
    optimizer, local_optimizer, codec, downlink, seed : see `Learner`, and `ParameterShard`, where ``codec`` is the ``uplink``.
    personal : the places, in the model's layout, of the parameters that stay with each worker.
    worker_resources, server_resources : what each of them is to have of its machine.
    privacy : what becomes of the workers' updates.
    shared : whether workers that run in one process may use one model object in turn: each of their calls sets all parameters.

    Attributes
    ----------
    addressed : whether servers have a message for each worker, and not one for all.
    by_rows : whether servers send each worker the rows that it asks for.

    Raises
    ------
    ConfigurationError : workers are to have GPUs, and the model computes on the CPU only; or it cannot travel; or it cannot say
        which rows it needs, and is to.
    """

    def __init__(
        self,
        engine: Engine,
        model: Model,
        train: Dataset,
        *,
        optimizer: OptimizerSettings,
        local_optimizer: OptimizerSettings,
        codec: tuple[str, Mapping[str, Any]],
        downlink: tuple[str, Mapping[str, Any]],
        seed: int,
        personal: Collection[int],
        worker_resources: Resources,
        server_resources: Resources,
        privacy: Privacy | None = None,
        shared: bool = False,
    ) -> None:
        if worker_resources.gpus:
            check_movable(model)
        self._device = GPU if worker_resources.gpus else None
        self._worker_resources, self._server_resources = worker_resources, server_resources
        self._engine, self._optimizer, self._seed = engine, optimizer, seed
        self._local_optimizer, self._codec, self._downlink = local_optimizer, codec, downlink
        self._privacy = privacy
        sends = CODECS.create(*downlink)
        self.addressed, self.by_rows = sends.chained, sends.by_rows
        if self.by_rows:
            check_rows(model)
        self._personal, self._part = sorted(personal), SharedPart(model.layout, personal) if personal else None
        self._layout = model.layout if self._part is None else self._part.layout
        self._initial: Flat | None = None  # kept where the model itself is not put away
        self._shared: SharedModel | None = None
        try:
            if engine.nodes_own_data:
                self._initial = model.parameters().copy()
                self._dataset, self._replica = None, Counterpart.of(model.layout, train)
            else:
                self._dataset, self._replica = engine.put(train), engine.put(model)
                if shared and engine.one_process and self._device is None and not self.by_rows:
                    self._shared = SharedModel(Shared(engine.get(self._replica)))
        except ConfigurationError:
            ensure_picklable(model)  # it knows which attribute is to blame
            raise

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""
        self._engine.reserve([self._worker_resources] * count, timeout_s)

    def worker(self, rank: int, order: Order) -> Any:
        """Start the worker of a rank."""
        private = {} if self._privacy is None else {"privacy": self._privacy}
        return self._engine.spawn(
            PrivateWorker if private else Learner,
            rank,
            self._shared or self._replica,
            self._dataset,
            order,
            optimizer=self._optimizer,
            local_optimizer=self._local_optimizer,
            codec=self._codec,
            downlink=self._downlink,
            seed=self._seed,
            **private,
            device=self._device,
            personal=self._personal,
            resources=self._worker_resources,
            name=f"worker {rank}",
        )

    def servers(self, shards: int) -> list[Any]:
        """Start a server for each of so many slices of the parameters."""
        self._layout.bounds(shards)  # or there are too many
        self._engine.reserve([self._server_resources] * shards)
        return [self.server(index, shards) for index in range(shards)]

    def server(self, index: int, shards: int) -> Any:
        """Start one server, with the initial parameters of its slice."""
        begin, end = list(itertools.pairwise(self._layout.bounds(shards)))[index]
        # Asked for anew each time, which is seldom: a copy kept for it would be as large as the model.
        initial = self._engine.get(self._replica).parameters() if self._initial is None else self._initial
        if self._part is not None:
            initial = self._part.of(initial)
        return self._engine.spawn(
            ParameterShard,
            initial[begin:end],
            self._layout.cut(begin, end),
            optimizer=self._optimizer,
            codec=self._downlink,
            uplink=self._codec,
            seed=self._seed * 1_000_003 + index,
            privacy=self._privacy,
            resources=self._server_resources,
            name=f"server {index}",
        )
