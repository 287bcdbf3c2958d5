"""The trainer: an experiment by name or by object, made into actors on an engine and run."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from chimera.codecs.codec import CODECS
from chimera.core.engine import ENGINES, Engine
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import shard_bounds
from chimera.data.dataset import DATASETS, Dataset, Split
from chimera.data.order import orders
from chimera.data.partition import PARTITIONERS, Partitioner
from chimera.models.conversion import as_model, build_model
from chimera.models.device import GPU, check_movable
from chimera.models.model import Model
from chimera.models.pickling import ensure_picklable
from chimera.strategies.strategy import STRATEGIES, Strategy
from chimera.training.budget import Budget
from chimera.training.cadence import Cadence
from chimera.training.callback import Callback
from chimera.training.checkpoint import Checkpoints, check_fits
from chimera.training.cluster import TrainingCluster
from chimera.training.experiment import Experiment
from chimera.training.history import History
from chimera.training.learner import Learner
from chimera.training.loop import TrainingLoop
from chimera.training.optimizer import OptimizerSettings
from chimera.training.parameter_shard import ParameterShard
from chimera.training.plugin import Named, label, made, named
from chimera.training.recovery import OnWorkerLoss, Recovery
from chimera.training.resources import GivenResources, resources_of, resources_table, server_resources_of
from chimera.training.run import Cost, Run
from chimera.training.run_folder import RunFolder

_PRELOADED = ("torch", "chimera.training.learner", "chimera.training.parameter_shard", "chimera.models.torch_model")


class Trainer:
    """Trains one model on one data set, in one way.

    Parameters
    ----------
    model : a name, a module, an estimator, a factory of one, or a `Model`.
    data : a name, a `Dataset` (a fifth is kept for testing), a `Split`, a (train, test) pair, or arrays (inputs, targets).
    strategy, codec, partition, engine : a name, a mapping ``{"name": ..., option: ...}`` or an object. An engine given as an
        object is not closed.
    workers : how many.
    batch_size : samples per worker and step.
    optimizer : any of `torch.optim`, by name or as a mapping with its options; it runs on the servers, or on each worker
        where there are none.
    epochs, rounds, max_seconds, max_bytes, target : see `Budget`; one epoch if nothing is given.
    evaluate_every, log_every, checkpoint_every : in rounds; by default each epoch, a hundred times a run (less often with many
        workers), and at each evaluation.
    min_workers : the run stops with fewer living workers than this.
    on_worker_loss : ``respawn`` a worker that died, with its rank and data; ``drop`` it; or ``stop`` the run.
    max_restarts : how often a run respawns a worker; after that it drops them.
    worker_resources, server_resources : what each of them is to have: ``threads``, ``gpus`` (workers only: their model and
        batches are on a GPU then) and ``custom``, other resources of the cluster by name; as a mapping, or as `Resources`.
    seed : of the model, the partition, the order of the data, and dropout.
    callbacks : told of progress and events.
    out : the run's folder; by default a new one under ``runs/``, called ``name``.
    name : of the run.
    resume : go on from the last checkpoint in the run's folder, if there is one.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        *,
        strategy: Named | Strategy = "parameter-server",
        codec: Named = "identity",
        partition: Named | Partitioner = "iid",
        engine: Named | Engine = "local",
        workers: int = 2,
        batch_size: int = 64,
        optimizer: Named = "sgd",
        epochs: float | None = None,
        rounds: int | None = None,
        max_seconds: float | None = None,
        max_bytes: int | None = None,
        target: Mapping[str, float] | None = None,
        evaluate_every: int | None = None,
        log_every: int | None = None,
        checkpoint_every: int | None = None,
        min_workers: int = 1,
        on_worker_loss: OnWorkerLoss = "respawn",
        max_restarts: int = 3,
        worker_resources: GivenResources = None,
        server_resources: GivenResources = None,
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
        name: str | None = None,
        resume: bool = False,
    ) -> None:
        for key, value in (("workers", workers), ("batch_size", batch_size), ("min_workers", min_workers)):
            if value < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {value}")
        if min_workers > workers:
            raise ConfigurationError(f"min_workers is {min_workers}, and there are {workers} workers")
        limited = any(limit is not None for limit in (epochs, rounds, max_seconds, max_bytes))
        self._budget = Budget(epochs if limited else 1, rounds, max_seconds, max_bytes, target)
        self._strategy = made(STRATEGIES, strategy)
        self._partition = made(PARTITIONERS, partition)
        self._codec = named(codec)
        CODECS.create(*self._codec)
        self._optimizer = OptimizerSettings(*named(optimizer))
        self._engine, self._model, self._data = engine, model, data
        self._workers, self._batch_size = self._strategy.world_size(workers), batch_size
        self._every = {"log_every": log_every, "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every}
        for key, every in self._every.items():
            if every is not None and every < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {every}")
        if on_worker_loss not in get_args(OnWorkerLoss):
            choices = ", ".join(get_args(OnWorkerLoss))
            raise ConfigurationError(f"on_worker_loss must be one of {choices}, not {on_worker_loss!r}")
        if max_restarts < 0:
            raise ConfigurationError(f"max_restarts must be at least 0, not {max_restarts}")
        self._min_workers, self._seed = min_workers, seed
        self._on_loss = on_worker_loss, max_restarts
        self._worker_resources = resources_of("worker_resources", worker_resources)
        self._server_resources = server_resources_of(server_resources)
        self._callbacks = list(callbacks)
        self._folder = RunFolder.choose(out, name or f"{label(model)}-{label(data)}", resume=resume)
        self._experiment = {
            "data": data,
            "model": model,
            "strategy": strategy,
            "codec": codec,
            "partition": partition,
            "engine": engine,
            "workers": workers,
            "batch_size": batch_size,
            "optimizer": optimizer,
            "epochs": self._budget.epochs,
            "rounds": rounds,
            "max_seconds": max_seconds,
            "max_bytes": max_bytes,
            "target": target,
            **self._every,
            "min_workers": min_workers,
            "on_worker_loss": on_worker_loss,
            "max_restarts": max_restarts,
            "worker_resources": resources_table(worker_resources),
            "server_resources": resources_table(server_resources),
            "seed": seed,
        }

    @property
    def run_dir(self) -> Path:
        """The folder that the run writes to."""
        return self._folder.path

    def fit(self) -> Run:
        """Train, and return what came of it; the run's folder holds the same and a report.

        Raises
        ------
        ConfigurationError : something of the experiment cannot be used.
        RunError : the run began and cannot go on; its folder holds the last checkpoint.
        KeyboardInterrupt : Ctrl-C; a checkpoint was written first.
        """
        engine, owned = self._open_engine()  # before the data: its processes import while this one loads
        try:
            split = self._split()
            self._optimizer.check()
            model = self._driver_model(split)
            if self._worker_resources.gpus:
                check_movable(model)
            self._folder.begin(Experiment.of(**self._experiment).to_toml(), self._seed)
            engine.reserve([self._worker_resources] * self._workers)
            make_worker, make_servers = (
                self._worker_maker(engine, split.train, model),
                self._server_maker(engine, model),
            )
            cluster = TrainingCluster(engine, make_worker, self._workers, make_servers, self._min_workers)
            try:
                return self._fit(engine, cluster, split, model)
            finally:
                if not owned:
                    cluster.end()
        finally:
            if owned:
                engine.close()

    def _fit(self, engine: Engine, cluster: TrainingCluster, split: Split, model: Model) -> Run:
        checkpoints = Checkpoints(str(self._folder.path / "checkpoints"))
        saved = checkpoints.read_last() if self._folder.resumes else None
        engine.get([worker.step() for worker in cluster.workers])  # what a constructor raises shows here
        engine.trace()
        samples_per_round = self._strategy.batches_per_round(self._workers) * self._batch_size
        history = History(self._folder.path, saved["files"] if saved else None)
        loop = TrainingLoop(
            engine=engine,
            strategy=self._strategy,
            cluster=cluster,
            model=model,
            test=split.test,
            train_size=len(split.train),
            batch_size=self._batch_size,
            budget=self._budget,
            cadence=Cadence.of(self._budget, len(split.train) / samples_per_round, self._workers, **self._every),
            history=history,
            checkpoints=checkpoints,
            callbacks=self._callbacks,
            recovery=Recovery(cluster, *self._on_loss),
            buffers=getattr(model, "buffer_policy", "none"),
        )
        try:
            if saved:
                check_fits(saved, model.layout.size)
                loop.restore(saved)
            stopped_by = loop.run()
        finally:
            history.close()
        used = loop.counters
        cost = Cost(
            used.seconds, used.bytes_up, used.bytes_down, used.rounds, used.samples, used.samples / len(split.train)
        )
        run = Run(
            run_dir=self._folder.path,
            model=getattr(model, "module", getattr(model, "estimator", model)),
            cost=cost,
            metrics=loop.metrics,
            stopped_by=stopped_by,
            names=self._names(),
            events=history.events,
            rows=history.metrics,
            trained=model,
            staleness=dict(sorted(loop.staleness.items())),
            figures=dict(self._strategy.figures()),
        )
        self._folder.finish(run)
        for callback in self._callbacks:
            callback.on_end(run)
        return run

    def _open_engine(self) -> tuple[Engine, bool]:
        if not isinstance(self._engine, str | Mapping):
            return self._engine, False
        name, options = named(self._engine)
        factory = ENGINES.find(name).factory
        given: dict[str, Any] = {}
        if "preload" in inspect.signature(factory).parameters and "preload" not in options:
            given["preload"] = [m for m in _PRELOADED if m != "torch" or importlib.util.find_spec("torch")]
        return ENGINES.create(name, options, **given), True

    def _split(self) -> Split:
        if isinstance(self._data, str) or (isinstance(self._data, Mapping) and "name" in self._data):
            name, options = named(self._data)
            split = DATASETS.create(name, options)
        else:
            split = Split.of(self._data, seed=self._seed)
        if self._workers > len(split.train):
            raise ConfigurationError(f"{self._workers} workers cannot share {len(split.train)} training samples")
        return split

    def _driver_model(self, split: Split) -> Model:
        train = split.train
        about: dict[str, Any] = {"input_shape": train.input_shape, "outputs": train.outputs, "task": train.task}
        if isinstance(self._model, str | Mapping):
            return build_model(*named(self._model), seed=self._seed, **about)
        return as_model(self._model, seed=self._seed, **about)

    def _worker_maker(self, engine: Engine, train: Dataset, model: Model) -> Callable[[int], Any]:
        parts = orders(self._partition, train, self._workers, self._batch_size, self._seed)
        try:
            dataset, replica = engine.put(train), engine.put(model)
        except ConfigurationError:
            ensure_picklable(model)  # it knows which attribute is to blame
            raise

        def make(rank: int) -> Any:
            return engine.spawn(
                Learner,
                rank,
                replica,
                dataset,
                parts[rank],
                optimizer=self._optimizer,
                codec=self._codec,
                seed=self._seed,
                device=GPU if self._worker_resources.gpus else None,
                resources=self._worker_resources,
                name=f"worker {rank}",
            )

        return make

    def _server_maker(self, engine: Engine, model: Model) -> Callable[[int], list[Any]]:
        flat, layout = model.parameters().copy(), model.layout

        def make(shards: int) -> list[Any]:
            if shards > flat.size:
                raise ConfigurationError(f"{flat.size} parameters cannot be spread over {shards} shards")
            bounds = shard_bounds(flat.size, shards)
            pieces = [(flat[b:e], layout.cut(b, e)) for b, e in itertools.pairwise(bounds)]
            engine.reserve([self._server_resources] * shards)
            needs = self._server_resources
            return [
                engine.spawn(ParameterShard, *piece, optimizer=self._optimizer, resources=needs, name=f"server {i}")
                for i, piece in enumerate(pieces)
            ]

        return make

    def _names(self) -> dict[str, Any]:
        return {
            "strategy": label(self._experiment["strategy"]),
            "codec": self._codec[0],
            "engine": label(self._engine),
            "workers": self._workers,
        }


def train(model: Any, data: Any, **options: Any) -> Run:
    """Train ``model`` on ``data``; the options are those of `Trainer`."""
    return Trainer(model, data, **options).fit()
