"""The trainer: runs an experiment, whose parts are given by name or as objects, on an engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import RunError
from chimera.core.safe_path import safe_path
from chimera.data.description import described
from chimera.data.partition import Partitioner
from chimera.data.split import Split
from chimera.models.compute import Precision
from chimera.models.model import Model
from chimera.strategies.strategy import Strategy
from chimera.training.artifacts.checkpoint import Checkpoints, check_fits
from chimera.training.artifacts.folder import RunFolder
from chimera.training.artifacts.result import Run
from chimera.training.artifacts.signature import Signature
from chimera.training.assembly import Assembly
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.experiment.experiment import Experiment
from chimera.training.experiment.resolve import (
    check_data,
    configured,
    model_of,
    open_engine,
    preload_of,
    split_of,
)
from chimera.training.experiment.resources import GivenResources
from chimera.training.experiment.settings import Settings
from chimera.training.fault_tolerance.injection import FaultScript, check_attacks
from chimera.training.fault_tolerance.recovery import Recovery
from chimera.training.fault_tolerance.settings import OnWorkerLoss
from chimera.training.inspection import Inspection, counts_of_run, inspect_data
from chimera.training.plugin import Named, label
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.privacy.settings import Privacy
from chimera.training.progress.callback import Callback, notify
from chimera.training.progress.history import History
from chimera.training.progress.metric_monitor import Keep, MetricMonitor
from chimera.training.run.evaluator import Evaluator
from chimera.training.run.first_calls import first_calls
from chimera.training.run.gc_freeze import frozen_gc
from chimera.training.run.intervals import Intervals
from chimera.training.run.loop import TrainingLoop
from chimera.training.run.result import result_of
from chimera.training.worker.shared_parameters import SharedParameters


class Trainer:
    """Trains one model on one data set.

    Parameters
    ----------
    model : a name, a module, an estimator, a factory of one, or a `Model`.
    data : a name, a `Dataset` (a fifth of it becomes the test set), a `Split`, a pair (train, test), or a pair of arrays
        (inputs, targets). Tables with large features are standardized, see `Split.of`; a `Split` is not.
    strategy, partition, engine : a name, a mapping ``{"name": ..., option: ...}`` or an object. An engine given as an object
        stays open after the run.
    codec : codec of the uplink: a name, or a mapping with options. Its option ``downlink``, also a name or a mapping, is the
        codec of the weights that workers receive.
    workers : number of workers.
    batch_size : samples per worker and step.
    loader : reading of data sets whose samples are read one by one, a mapping: ``workers`` (reading processes of each worker;
        default 0: the worker reads itself) and ``ahead`` (batches that each prepares; default 4).
    accumulate : batches of each worker per step: their gradients are computed one after another and averaged. One gradient then
        is that of ``accumulate * batch_size`` samples.
    precision, activation_checkpointing, compile : how torch models compute, see `Compute`.
    optimizer : any optimizer of `torch.optim` or your own: a name; a mapping with its options and a ``schedule`` of the
        learning rate (see `Schedule`); its class, a `functools.partial` of the class, or an instance (see
        `optimizer_table`). It turns gradients into steps: on workers if they take local steps or there are no servers, else on
        servers. Default: that of the model, if it is a ``LightningModule``; else ``adam`` with learning rate 1e-3, or the
        strategy's own (see `Strategy.default_optimizer`). A mapping without a name changes options of the default.
    max_gradient_norm : scale each gradient with a larger Euclidean norm to this norm, where the optimizer steps: the mean
        gradient of all workers, or that of a worker that takes local steps. Default: no limit.
    epochs, rounds, max_seconds, max_bytes, target : when the run stops, see `Budget`; by default after one epoch.
    patience : stop after this many evaluations without improvement of ``monitor``; default: never.
    monitor : the metric that decides which model is best, such as ``loss``; default: ``accuracy`` if it is measured, else
        ``loss``. Losses and errors improve when they fall, other metrics when they rise.
    keep : the model that the run returns and writes, with its metrics: that of the ``best`` evaluation, or the ``last`` one.
    evaluate_clients : evaluate the model on each worker's own data too. Metrics then include the mean, the standard deviation
        and the mean over the worst tenth of the workers; the history has the metrics of each worker.
    test_per_client : share of its rows that each worker keeps for this evaluation and never trains on, with the same shares of
        its labels; at least one row. A worker with a single row trains on it and is not evaluated. Each worker then has rows of
        its own with every partition. Default: workers are evaluated on the rows on which they train.
    evaluate_every, log_every, checkpoint_every : rounds between evaluations (default: one epoch), log rows (default: a hundred
        in a run, fewer with many workers) and checkpoints (default: one at each evaluation).
    min_workers : the run stops with fewer living workers than this.
    max_workers : up to this many workers may run if more join during the run and the engine has room; default: no worker joins.
    on_worker_loss : ``respawn`` a lost worker with its rank and data; ``redistribute`` its data to the others; ``drop`` the
        worker and its data; or ``stop`` the run. A lost parameter server is always restarted, from the last snapshot.
    max_restarts : how many lost workers and servers a run replaces. After that, lost workers are dropped.
    worker_timeout_s : seconds without a heartbeat after which a worker or server is killed and counts as lost. Must be longer
        than one gradient takes; ``inf`` waits without a limit.
    snapshot_every : rounds between snapshots of the parameters in the driver, for recovery from a lost server.
    faults : faults to inject, for experiments: sentences such as ``kill worker 2 at step 50``, or pairs (when, what); see
        `Fault.read`.
    worker_resources, server_resources : resources of each worker or server: ``threads``, ``gpus`` (workers only: model and
        batches are then on a GPU), ``memory_mb``, and ``custom`` resources of the cluster by name; a mapping or `Resources`.
    privacy : protection of clients' updates, a mapping, see `Privacy`: clipping and noise, with an epsilon, and secure
        aggregation (docs/privacy.md). By default servers see each update.
    seed : seed of the model, the partition, the order of the data, and dropout.
    callbacks : receive progress and events.
    out : the run's folder; by default a new folder ``runs/<name>``.
    name : name of the run; by default the names of model and data.
    resume : continue from the last checkpoint in the run's folder, if there is one.
    progress : whether `chimera.train` shows the progress; `fit` shows none, but for callbacks.

    Attributes
    ----------
    callbacks : the callbacks; more may be added before `fit`.
    progress : the argument.
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
        loader: Mapping[str, Any] | None = None,
        accumulate: int = 1,
        precision: Precision = "fp32",
        activation_checkpointing: bool = False,
        compile: bool = False,  # noqa: A002 - the word for it in PyTorch
        optimizer: Any = None,
        max_gradient_norm: float | None = None,
        epochs: float | None = None,
        rounds: int | None = None,
        max_seconds: float | None = None,
        max_bytes: int | None = None,
        target: Mapping[str, float] | None = None,
        patience: int | None = None,
        monitor: str | None = None,
        keep: Keep = "last",
        evaluate_clients: bool = False,
        test_per_client: float | None = None,
        evaluate_every: int | None = None,
        log_every: int | None = None,
        checkpoint_every: int | None = None,
        min_workers: int = 1,
        max_workers: int | None = None,
        on_worker_loss: OnWorkerLoss = "respawn",
        max_restarts: int = 3,
        worker_timeout_s: float = 300.0,
        snapshot_every: int = 100,
        faults: Sequence[Any] = (),
        worker_resources: GivenResources = None,
        server_resources: GivenResources = None,
        privacy: Mapping[str, Any] | Privacy | None = None,
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
        name: str | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> None:
        self._settings = Settings.of(
            {
                "strategy": strategy,
                "codec": codec,
                "partition": partition,
                "workers": workers,
                "batch_size": batch_size,
                "loader": loader,
                "accumulate": accumulate,
                "precision": precision,
                "activation_checkpointing": activation_checkpointing,
                "compile": compile,
                "optimizer": optimizer,
                "max_gradient_norm": max_gradient_norm,
                "epochs": epochs,
                "rounds": rounds,
                "max_seconds": max_seconds,
                "max_bytes": max_bytes,
                "target": target,
                "patience": patience,
                "monitor": monitor,
                "keep": keep,
                "evaluate_clients": evaluate_clients,
                "test_per_client": test_per_client,
                "evaluate_every": evaluate_every,
                "log_every": log_every,
                "checkpoint_every": checkpoint_every,
                "min_workers": min_workers,
                "max_workers": max_workers,
                "on_worker_loss": on_worker_loss,
                "max_restarts": max_restarts,
                "worker_timeout_s": worker_timeout_s,
                "snapshot_every": snapshot_every,
                "faults": faults,
                "worker_resources": worker_resources,
                "server_resources": server_resources,
                "privacy": privacy,
                "seed": seed,
            }
        )
        self._engine, self._model, self._data = engine, model, data
        self._recovery: Recovery | None = None
        self._stop = threading.Event()
        self.callbacks, self.progress = list(callbacks), progress
        self._folder = RunFolder.choose(out, name or f"{label(model)}-{label(data)}", resume=resume)

    @property
    def _workers(self) -> str:
        count = self._settings.workers
        return "1 worker" if count == 1 else f"{count} workers"

    @property
    def title(self) -> str:
        """The names of data, model, strategy, codec and engine, and the number of workers."""
        names = [label(self._data), label(self._model), *map(str, list(self._names().values())[:-1])]
        return " · ".join([*names, self._workers])

    @property
    def run_dir(self) -> Path:
        """The folder that the run writes to."""
        return self._folder.path

    @property
    def optimizers(self) -> str:
        """Which optimizer steps where, such as ``optimizer: adam (lr 0.001) on workers · server: sgd (lr 1)``."""
        return self._settings.optimizers

    def add_worker(self) -> None:
        """Add a worker to the run as soon as the engine has room. May be called from a callback or another thread.

        Raises
        ------
        RunError : no run is in progress, or the run has ``max_workers`` workers.
        """
        if self._recovery is None:
            raise RunError("no run is in progress that a worker could join")
        self._recovery.request_worker()

    def stop(self) -> None:
        """End the run after the rounds in flight. May be called from a callback or another thread.

        The run evaluates the model and writes all files, as at any other end; ``stopped_by`` is then ``stop``. A run that has
        not started yet ends after its first round.
        """
        self._stop.set()

    def check_optimizers(self) -> None:
        """Take a trial step with each optimizer, so that errors are raised before anything runs.

        Raises
        ------
        ConfigurationError : the optimizer is unknown, or it refuses its options.
        """
        self._settings.optimizer.check()
        if self._settings.server_optimizer is not None:
            self._settings.server_optimizer.check()

    def inspect_data(self) -> Inspection:
        """Return what the data is and what each worker would hold, without starting an engine or training.

        Raises
        ------
        ConfigurationError : the data cannot be read, or not be divided among the workers.
        """
        return inspect_data(self._settings, self._engine, self._data)

    def fit(self) -> Run:
        """Train, write the run's folder and its report, and return the result.

        Raises
        ------
        ConfigurationError : a part of the experiment cannot be used.
        RunError : the run started and cannot continue. Its folder holds the last checkpoint.
        KeyboardInterrupt : Ctrl-C. A checkpoint was written first.
        """
        settings = self._settings
        # The engine starts before the data is loaded: its processes import libraries meanwhile.
        codecs = settings.codec[0], settings.downlink[0]
        notify(self.callbacks, "on_wait", f"the engine {label(self._engine)}")
        engine, owned = open_engine(self._engine, preload_of(self._data, self._model, codecs))
        try:
            notify(self.callbacks, "on_wait", f"the data {label(self._data)}")
            # nodes train on their own rows, so the rows of the test set stay as they are, too
            split = split_of(self._data, settings.seed, False if engine.nodes_own_data else "auto")
            if not engine.nodes_own_data:
                notify(self.callbacks, "on_data", described(split))
            check_data(
                split.train,
                settings.workers,
                settings.tolerance,
                nodes_own_data=engine.nodes_own_data,
                test_share=settings.test_per_client,
            )
            check_attacks(settings.faults, settings.strategy, split.train)
            model = configured(model_of(self._model, split.train, settings.seed), settings.compute)
            train_size = None if engine.nodes_own_data else len(split.train)
            self._settings = settings = settings.following(model, train_size)
            self.check_optimizers()
            for notice in filter(None, (self.optimizers, getattr(model, "notice", None))):
                notify(self.callbacks, "on_notice", notice)
            if settings.privacy is not None:
                settings.privacy.check_model(model, settings.strategy)
            table = {**settings.table, "data": self._data, "model": self._model, "engine": self._engine}
            self._folder.begin(Experiment.of(**table).to_toml(), settings.seed, Signature.of(split))
            checkpoints = Checkpoints(str(safe_path(self._folder.path, "checkpoints")))
            saved = checkpoints.read_last() if self._folder.resumes else None
            if saved:
                check_fits(saved, model)
            monitor = HeartbeatMonitor(engine, settings.tolerance.worker_timeout_s)
            notify(self.callbacks, "on_wait", f"{self._workers} on the engine {label(self._engine)}")
            assembly = Assembly(settings, engine, model, split.train, saved)
            cluster = assembly.cluster(monitor)
            try:
                self._folder.describe_data(counts_of_run(settings, split.train, cluster.orders))
                return self._fit(engine, monitor, cluster, split, model, checkpoints, saved, assembly.train_size)
            except KeyboardInterrupt as error:
                if checkpoints.paths():
                    again = f"out={str(self.run_dir)!r}, resume=True"
                    error.add_note(f"the run has a checkpoint; to resume, call it again with {again}")
                raise
            finally:
                if not owned:
                    cluster.end()
        finally:
            if owned:
                engine.close()

    def _fit(
        self,
        engine: Engine,
        monitor: HeartbeatMonitor,
        cluster: TrainingCluster,
        split: Split,
        model: Model,
        checkpoints: Checkpoints,
        saved: dict[str, Any] | None,
        train_size: int,
    ) -> Run:
        settings = self._settings
        self._recovery = Recovery(engine, cluster, monitor, settings.tolerance)
        sizes = first_calls(engine, monitor, cluster, self._recovery)
        train_size = train_size or sum(sizes)  # 0 where nodes own the data
        engine.trace()
        history = History(self._folder.path, saved["files"] if saved else None)
        guarantee, kept = Guarantee(settings.privacy), settings.strategy.keeps(model)
        watched = MetricMonitor(settings.stopping, cluster.schedules)
        evaluator = Evaluator(
            engine,
            monitor,
            settings.strategy,
            cluster,
            model=model,
            test=split.test,
            buffers=getattr(model, "buffer_policy", "none"),
            part=SharedParameters(model.layout, kept) if kept else None,
            clients=settings.evaluate_clients,
        )
        rounds = train_size / settings.samples_per_round(settings.workers, train_size)
        loop = TrainingLoop(
            engine=engine,
            monitor=monitor,
            strategy=settings.strategy,
            cluster=cluster,
            evaluator=evaluator,
            train_size=train_size,
            batch_size=settings.batch_size,
            budget=settings.budget,
            intervals=Intervals.of(settings.budget, rounds, settings.workers, **settings.every),
            history=history,
            checkpoints=checkpoints,
            callbacks=self.callbacks,
            recovery=self._recovery,
            faults=FaultScript(settings.faults),
            guarantee=guarantee,
            watched=watched,
            stop_requested=self._stop.is_set,
        )
        try:
            if saved:
                loop.restore(saved)
            with frozen_gc(len(cluster.workers) if engine.one_process else 0):
                stopped_by = loop.run()
        finally:
            self._recovery.end()
            self._recovery = None
            history.close()
        run = result_of(
            loop, engine, settings, split, model, history=history, guarantee=guarantee, folder=self._folder.path,
            names=self._names(), stopped_by=stopped_by, train_size=train_size,
        )  # fmt: skip
        self._folder.finish(run)
        notify(self.callbacks, "on_end", run)
        return run

    def _names(self) -> dict[str, Any]:
        return {
            "strategy": label(self._settings.table["strategy"]),
            "codec": self._settings.codec[0],
            "engine": label(self._engine),
            "workers": self._settings.workers,
        }
