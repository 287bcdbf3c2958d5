"""Creation of a run's actors: workers and servers."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chimera.codecs.codec import CODECS
from chimera.core.engine import Engine, Resources
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.data.dataset import TrainingData
from chimera.data.loader import Loading
from chimera.data.order import Order
from chimera.models.device import GPU, check_movable
from chimera.models.model import Model
from chimera.models.pickling import ensure_picklable
from chimera.models.shared_model import SharedInstance, SharedModel
from chimera.strategies.cluster import Announced
from chimera.training.cluster import actors
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.server.edge_server import EdgeServer
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.dormant_learner import DormantLearner, Population
from chimera.training.worker.driver_schema import DriverSchema
from chimera.training.worker.extension import ExtensionName, to_send
from chimera.training.worker.learner import Learner
from chimera.training.worker.row_exchange import check_rows
from chimera.training.worker.shared_parameters import SharedParameters


class Actors(actors.Actors):
    """Starts workers and servers on an engine.

    Parameters
    ----------
    engine : the engine on which the actors run.
    model : the initial model.
    train : the training data, stored once and shared by all workers. Where nodes own the data, workers receive a
        `DriverSchema` instead of model and data.
    optimizer, codec, downlink, seed : see `Learner` and `ParameterShard`, where ``codec`` is the ``uplink``.
    server_optimizer : the servers' optimizer; None: ``optimizer``.
    personal : indices, in the model's layout, of the tensors that stay with each worker.
    worker_resources, server_resources : resources of each worker and server.
    privacy : protection of the workers' updates.
    loading : reading ahead of batches by each worker; not used if all workers are in one process, which would need too many
        reading processes.
    extensions : the worker extensions that the strategy declares.
    shared : whether workers in one process use one model object, one after another, since each call sets all parameters.

    Attributes
    ----------
    addressed : whether servers send each worker a message of its own.
    by_rows : whether servers send each worker the rows that it requests.
    private : whether the run is private.

    Raises
    ------
    ConfigurationError : workers need GPUs but the model computes on the CPU only; the model cannot be pickled; or the downlink
        sends rows and the model cannot tell which rows it needs.
    """

    def __init__(
        self,
        engine: Engine,
        model: Model,
        train: TrainingData,
        *,
        optimizer: OptimizerSettings,
        server_optimizer: OptimizerSettings | None,
        codec: tuple[str, Mapping[str, Any]],
        downlink: tuple[str, Mapping[str, Any]],
        seed: int,
        personal: Collection[int],
        worker_resources: Resources,
        server_resources: Resources,
        privacy: Privacy | None = None,
        loading: Loading | None = None,
        extensions: Sequence[ExtensionName] = (),
        shared: bool = False,
    ) -> None:
        if worker_resources.gpus:
            check_movable(model)
        self._device = GPU if worker_resources.gpus else None
        self._worker_resources, self._server_resources = worker_resources, server_resources
        self._engine, self._optimizer, self._seed = engine, optimizer, seed
        self._server_optimizer, self._codec, self._downlink = server_optimizer or optimizer, codec, downlink
        self.schedules = optimizer.schedule, self._server_optimizer.schedule
        self._privacy, self.private = privacy, privacy is not None
        self._loading = {} if loading is None or not loading.workers or engine.one_process else {"loading": loading}
        self._extensions = [to_send(one, by_name=engine.nodes_own_data) for one in extensions]
        sends = CODECS.create(*downlink)
        self.addressed, self.by_rows = sends.chained, sends.by_rows
        if self.by_rows:
            check_rows(model)
        self._personal, self._part = sorted(personal), SharedParameters(model.layout, personal) if personal else None
        self._layout = model.layout if self._part is None else self._part.layout
        self._initial: Flat | None = None  # kept where the model is not stored in the engine
        self._shared: SharedModel | None = None
        self._population: Population | None = None  # of workers that are created when they are first needed
        try:
            if engine.nodes_own_data:
                self._initial = model.parameters().copy()
                self._dataset, self._replica = None, DriverSchema.of(model, train)
            else:
                self._dataset, self._replica = engine.put(train), engine.put(model)
                if shared and engine.one_process and self._device is None and not self.by_rows:
                    self._share(engine.get(self._replica))
        except ConfigurationError:
            ensure_picklable(model)  # raises an error that names the attribute
            raise

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""
        self._engine.reserve([self._worker_resources] * count, timeout_s)

    def worker(self, rank: int, order: Order) -> Any:
        """Start the worker of a rank."""
        if self._population is not None:
            self._population.orders[rank] = order
            resources, name = self._worker_resources, f"worker {rank}"
            return self._engine.spawn(DormantLearner, rank, self._population_ref, resources=resources, name=name)
        private = {} if self._privacy is None else {"privacy": self._privacy}
        extensions = {"extensions": tuple(self._extensions)} if self._extensions else {}
        return self._engine.spawn(
            PrivateWorker if private else Learner,
            rank,
            self._shared or self._replica,
            self._dataset,
            order,
            optimizer=self._optimizer,
            codec=self._codec,
            downlink=self._downlink,
            seed=self._seed,
            **private,
            **extensions,
            **self._loading,
            device=self._device,
            personal=self._personal,
            resources=self._worker_resources,
            name=f"worker {rank}",
        )

    def _share(self, model: Model) -> None:
        """Share one model object among the workers; create workers without other state when they are first needed."""
        loss_scale = getattr(model, "loss_scale", None)
        if self._personal or self._extensions or self._privacy or (loss_scale is not None and loss_scale() is not None):
            self._shared = SharedModel(SharedInstance(model))
            return
        options = {"optimizer": self._optimizer, "codec": self._codec, "downlink": self._downlink, "seed": self._seed}
        self._population = Population(model, self._engine.get(self._dataset), **options)
        self._population_ref = self._engine.put(self._population)

    def announce(self, work: Mapping[int, Announced]) -> None:
        """Take the steps of the workers with this work together, where model and data offer it."""
        if self._population is not None and self._population.side_by_side is not None:
            self._population.side_by_side.announce(work)

    def servers(self, shards: int) -> list[Any]:
        """Start a server for each of ``shards`` slices of the parameters."""
        self._layout.bounds(shards)  # raises if there are too many
        if shards > 1 and self._server_optimizer.max_gradient_norm is not None:
            raise ConfigurationError(
                f"max_gradient_norm: {shards} servers hold a slice of the gradient each, not its norm: set shards to 1"
            )
        self._engine.reserve([self._server_resources] * shards)
        return [self.server(index, shards) for index in range(shards)]

    def server(self, index: int, shards: int) -> Any:
        """Start one server, with the initial parameters of its slice."""
        begin, end = list(itertools.pairwise(self._layout.bounds(shards)))[index]
        return self._engine.spawn(
            ParameterShard,
            self._initial_parameters()[begin:end],
            self._layout.cut(begin, end),
            optimizer=self._server_optimizer,
            codec=self._downlink,
            uplink=self._codec,
            seed=self._seed * 1_000_003 + index,
            privacy=self._privacy,
            resources=self._server_resources,
            name=f"server {index}",
        )

    def edge(self, number: int) -> Any:
        """Start an edge server."""
        self._engine.reserve([self._server_resources])
        return self._engine.spawn(
            EdgeServer,
            self._initial_parameters(),
            self._layout,
            codec=self._downlink,
            uplink=self._codec,
            seed=self._seed * 1_000_003 - 1 - number,
            resources=self._server_resources,
            name=f"edge {number}",
        )

    def _initial_parameters(self) -> Flat:
        # Fetched each time: this is rare, and a copy in the driver would be as large as the model.
        initial = self._engine.get(self._replica).parameters() if self._initial is None else self._initial
        return initial if self._part is None else self._part.of(initial)
