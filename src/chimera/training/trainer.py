"""The trainer: an experiment, whose parts are given by name or as objects, and the requests of its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.core.engine import Engine
from chimera.data.partition import Partitioner
from chimera.engines.mpi_launch import enter
from chimera.models.compute import Precision
from chimera.models.own_optimizer import check_not_partial, warn_of_state
from chimera.strategies.strategy import Strategy
from chimera.training.artifacts.folder import RunFolder
from chimera.training.artifacts.result import Run
from chimera.training.experiment.arguments import checked_scalars
from chimera.training.experiment.resolve import mapping_as_data
from chimera.training.experiment.resources import GivenResources
from chimera.training.experiment.settings import Settings
from chimera.training.fault_tolerance.settings import OnWorkerLoss
from chimera.training.inspection import Inspection, inspect_data
from chimera.training.plugin import Named, label
from chimera.training.privacy.settings import Privacy
from chimera.training.progress.callback import Callback, checked_callbacks
from chimera.training.progress.metric_monitor import Keep
from chimera.training.run.execution import Execution


class Trainer:
    """Trains one model on one data set.

    Parameters
    ----------
    model : a name, a module, an estimator, a factory of one, or a `Model`. A module, an estimator or a `Model` is trained in
        place, on every engine: after the run it holds the trained weights. ``run.model`` (``run.trained`` for a `Model`) is the
        same object. A second run with it continues from these weights. A name or a factory makes a new model for each run.
    data : a name, a `Dataset` (a fifth of it becomes the test set), a `Split`, a pair (train, test), or a pair of arrays
        (inputs, targets). Tables with large features are standardized, see `Split.of`; a `Split` is not. Default: ``nodes``,
        the rows that the nodes of the engine have, with the options of `chimera.data.nodes.nodes`.
    strategy, partition, engine : a name, a mapping ``{"name": ..., option: ...}`` or an object. An engine given as an object
        stays open after the run.
    codec : codec of the uplink: a name, or a mapping with options. Its option ``downlink``, also a name or a mapping, is the
        codec of the weights that workers receive.
    workers : number of workers.
    batch_size : samples per worker and step.
    loader : reading of data sets whose samples are read one by one; a mapping. ``workers`` is the number of reading processes
        of each worker (default 0: the worker reads itself). ``ahead`` is the number of batches that each prepares (default 4).
    accumulate : batches of each worker per step: their gradients are computed one after another and averaged. Each gradient is
        then the mean over ``accumulate * batch_size`` samples.
    precision, activation_checkpointing, compile : how torch models compute, see `chimera.models.compute.Compute`.
    optimizer : any optimizer of `torch.optim` or your own. It is given as a name, a mapping with options and a ``schedule`` of
        the learning rate (see `Schedule`), a class, a `functools.partial` of a class, or an instance (see `optimizer_table`),
        whose class and options are used, but not its state. It turns gradients into steps: on workers if they take local steps
        or there are no servers, else on servers. Default: the optimizer of the model, if it is a ``LightningModule``; else
        ``adam`` with learning rate 1e-3, or the strategy's default (see `Strategy.default_optimizer`). A mapping without a name
        changes options of the default.
    max_gradient_norm : largest Euclidean norm of a gradient. Longer gradients are scaled to this norm before the optimizer
        steps: the mean gradient of all workers, or the gradient of a worker that takes local steps. Default: no limit.
    epochs, rounds, max_seconds, max_bytes, target : when the run stops, see `Budget`; by default after one epoch.
    patience : stop after this many evaluations without improvement of ``monitor``; default: never.
    monitor : the metric that decides which model is best, such as ``loss``; default: ``accuracy`` if it is measured, else
        ``loss``. Losses and errors improve when they fall, other metrics when they rise.
    keep : the model that the run returns and writes, with its metrics: the model of the ``best`` evaluation, or the ``last``
        one.
    evaluate_clients : evaluate the model on each worker's own data too. Metrics then include the mean, the standard deviation
        and the mean over the worst tenth of the workers; the history has the metrics of each worker.
    test_per_client : share of its rows that each worker keeps for this evaluation and never trains on, with the same shares of
        its labels; at least one row. A worker with a single row trains on it and is not evaluated. Each worker then has rows of
        its own with every partition. Default: workers are evaluated on the rows on which they train.
    evaluate_every, log_every, checkpoint_every : rounds between evaluations (default: one epoch), log rows (default: a hundred
        in a run, fewer with many workers) and checkpoints (default: one at each evaluation, unless ``checkpoint_seconds`` is
        set).
    checkpoint_seconds : seconds of the engine's clock, virtual ones on ``simulated``, after which a checkpoint is due; default:
        not set. With ``checkpoint_every`` too, a checkpoint is written when either is due.
    min_workers : the run stops with fewer living workers than this.
    max_workers : up to this many workers may run if more join during the run and the engine has room; default: no worker joins.
    on_worker_loss : ``respawn`` a lost worker with its rank and data; ``redistribute`` its data to the others; ``drop`` the
        worker and its data; or ``stop`` the run. A lost parameter server is always restarted, from the last snapshot.
    max_restarts : largest number of lost workers and servers that a run replaces. After that, lost workers are dropped.
    worker_timeout_s : seconds without a heartbeat after which a worker or server is killed and counts as lost. Must be longer
        than one gradient takes; ``inf`` waits without a limit.
    snapshot_every : rounds between snapshots of the parameters in the driver, for recovery from a lost server. Default: 100; in
        real time, not within a second of the last one.
    faults : faults to inject, for experiments: sentences such as ``kill worker 2 at step 50``, or pairs (when, what); see
        `Fault.read`.
    worker_resources, server_resources : resources of each worker or server: ``threads``, ``gpus`` (workers only: model and
        batches are then on a GPU), ``memory_mb``, and ``custom`` resources of the cluster by name; a mapping or `Resources`.
    peak_flops : peak of each worker in FLOPs per second, to which the FLOPs of models that report them are compared (MFU,
        docs/how-to/language-models.md). Default: the peak of the GPU, if it is an A100, H100 or H200.
    privacy : protection of clients' updates, a mapping, see `Privacy`: clipping and noise, with an epsilon, and secure
        aggregation (docs/explanation/privacy.md). By default servers see each update.
    seed : seed of the model, the partition, the order of the data, and dropout.
    track : experiment trackers that record the run: names such as ``tensorboard``, or tables with options
        (docs/how-to/tracking.md).
    callbacks : objects that receive progress and events.
    out : the run's folder, or its URL in an object store (docs/how-to/object-stores.md); by default a new folder
        ``runs/<name>``.
    name : name of the run; by default the names of model and data.
    resume : continue from the last checkpoint in the run's folder, if there is one.
    progress : whether `chimera.train` shows the progress; `fit` shows progress through callbacks only.

    Attributes
    ----------
    callbacks : the callbacks; more may be added before `fit`.
    progress : the argument.
    """

    def __init__(
        self,
        model: Any,
        data: Any = "nodes",
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
        checkpoint_seconds: float | None = None,
        min_workers: int = 1,
        max_workers: int | None = None,
        on_worker_loss: OnWorkerLoss = "respawn",
        max_restarts: int = 3,
        worker_timeout_s: float = 300.0,
        snapshot_every: int | None = None,
        faults: Sequence[Any] = (),
        worker_resources: GivenResources = None,
        server_resources: GivenResources = None,
        peak_flops: float | None = None,
        privacy: Mapping[str, Any] | Privacy | None = None,
        seed: int = 0,
        track: Sequence[Any] = (),
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
        name: str | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> None:
        enter(engine)  # under mpiexec, only rank 0 continues
        given = {
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
            "checkpoint_seconds": checkpoint_seconds,
            "min_workers": min_workers,
            "max_workers": max_workers,
            "on_worker_loss": on_worker_loss,
            "max_restarts": max_restarts,
            "worker_timeout_s": worker_timeout_s,
            "snapshot_every": snapshot_every,
            "faults": faults,
            "worker_resources": worker_resources,
            "server_resources": server_resources,
            "peak_flops": peak_flops,
            "privacy": privacy,
            "seed": seed,
            "track": track,
        }
        settings = Settings.of(checked_scalars(given))
        checked_scalars({"name": name, "progress": progress})
        check_not_partial(optimizer, getattr(model, "module", model))
        warn_of_state(optimizer)
        data = mapping_as_data(data)
        folder = RunFolder.choose(out, name or f"{label(model)}-{label(data)}", resume=resume)
        self._execution = Execution(settings, folder, model=model, data=data, engine=engine)
        self.callbacks, self.progress = checked_callbacks(callbacks), progress

    @property
    def title(self) -> str:
        """The names of data, model, strategy, codec and engine, and the number of workers."""
        return self._execution.title

    @property
    def run_dir(self) -> Path:
        """The folder that the run writes to; for a run in an object store, one that exists during the run only."""
        return self._execution.folder.path

    @property
    def location(self) -> Path | str:
        """The folder of the run, or the URL of its files in an object store."""
        return self._execution.folder.location

    @property
    def optimizers(self) -> str:
        """Which optimizer steps where, such as ``optimizer: adam (lr 0.001) on workers · server: sgd (lr 1)``."""
        return self._execution.settings.optimizers

    def add_worker(self) -> None:
        """Add a worker to the run as soon as the engine has room. May be called from a callback or another thread.

        Raises
        ------
        RunError : no run is in progress, or the run has ``max_workers`` workers.
        """
        self._execution.add_worker()

    def stop(self) -> None:
        """End the run after the rounds in flight. May be called from a callback or another thread.

        The run evaluates the model and writes all files, as at any other end; ``stopped_by`` is then ``stop``. A run that has
        not started yet ends after its first round.
        """
        self._execution.stop()

    def check_optimizers(self) -> None:
        """Take a trial step with each optimizer, so that errors are raised before anything runs.

        Raises
        ------
        ConfigurationError : the optimizer is unknown, or it refuses its options.
        """
        self._execution.settings.check_optimizers()

    def inspect_data(self) -> Inspection:
        """Describe the data, and count what each worker would hold, without starting an engine or training.

        Raises
        ------
        ConfigurationError : the data cannot be read, or cannot be divided among the workers.
        """
        execution = self._execution
        return inspect_data(execution.settings, execution.engine, execution.data)

    def fit(self) -> Run:
        """Train, write the run's folder and its report, and return the result.

        Raises
        ------
        ConfigurationError : a part of the experiment cannot be used.
        RunError : the run started and cannot continue. Its folder holds the last checkpoint.
        KeyboardInterrupt : Ctrl-C. Rounds in flight were completed, and a checkpoint was written first. A second one ends the
            run at once.
        Terminated : SIGTERM or SIGUSR1, with the same effect; a subclass of KeyboardInterrupt. A program that does not catch it
            exits with code 143.
        """
        return self._execution.run(self.callbacks)
