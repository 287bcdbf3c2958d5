"""Settings of an experiment: the trainer's options, checked and resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.core.optimizer_table import optimizer_table
from chimera.data.loader import Loading
from chimera.data.partition import PARTITIONERS, Partitioner
from chimera.models.compute import Compute
from chimera.models.model import Model
from chimera.models.own_optimizer import RunLength
from chimera.strategies.strategy import STRATEGIES, Strategy
from chimera.training.experiment.resolve import check_aggregation, check_codecs
from chimera.training.experiment.resources import resources_of, resources_table, server_resources_of
from chimera.training.fault_tolerance.injection import as_sentences
from chimera.training.fault_tolerance.settings import FaultTolerance
from chimera.training.optimizers.flat_optimizer import avoid_compiler_import
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.optimizers.own import suggestion
from chimera.training.plugin import instantiate, label, named, uplink_and_downlink
from chimera.training.privacy.settings import Privacy
from chimera.training.progress.budget import Budget
from chimera.training.progress.metric_monitor import Stopping
from chimera.training.progress.peak import Peak
from chimera.training.tracking.tracker import Tracker, trackers_of

_LIMITS = "epochs", "rounds", "max_seconds", "max_bytes"
_TOLERANCE = "min_workers", "max_workers", "on_worker_loss", "max_restarts", "worker_timeout_s"
_COMPUTE = "precision", "accumulate", "activation_checkpointing", "compile"
_STOPPING = "patience", "monitor", "keep"
_EVERY = "log_every", "evaluate_every", "checkpoint_every", "snapshot_every"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `Trainer` except model, data and engine, checked as far as that is possible without data.

    Attributes
    ----------
    strategy, partition : the objects of strategy and partition.
    codec, downlink : name and options of the codecs of the uplink and the downlink.
    optimizer : turns gradients into steps, on servers or workers.
    given_optimizer : the user's option from which ``optimizer`` was made; None if it is the default.
    server_optimizer : optimizer with which servers step by the changes of workers; None without local steps.
    workers : number of workers that the strategy uses.
    batch_size : samples of a worker per step, all accumulated batches together.
    loading, compute : reading of batches, and computing of gradients.
    every : intervals in rounds, and one in seconds; None where not set.
    faults : sentences.
    test_per_client : share of its rows that each worker keeps for its evaluation; None: workers are evaluated on all their
        rows.
    peak : the peak of a worker in FLOPs per second.
    trackers : experiment trackers, by name.
    table : the options as plain values, for the experiment file.
    """

    strategy: Strategy
    partition: Partitioner
    codec: tuple[str, dict[str, Any]]
    downlink: tuple[str, dict[str, Any]]
    optimizer: OptimizerSettings
    given_optimizer: Any
    server_optimizer: OptimizerSettings | None
    workers: int
    batch_size: int
    budget: Budget
    stopping: Stopping
    tolerance: FaultTolerance
    every: Mapping[str, Any]
    faults: Sequence[str]
    privacy: Privacy | None
    evaluate_clients: bool
    test_per_client: float | None
    loading: Loading
    compute: Compute
    worker_resources: Resources
    server_resources: Resources
    peak: Peak
    seed: int
    trackers: Mapping[str, Tracker]
    table: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the settings of all these options of `Trainer`.

        Raises
        ------
        ConfigurationError : an option is invalid, or options contradict one another.
        """
        for key in ("workers", "batch_size", *_EVERY):
            if options[key] is not None and options[key] < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {options[key]}")
        if (seconds := options["checkpoint_seconds"]) is not None and not 0 < seconds < math.inf:
            raise ConfigurationError(f"checkpoint_seconds must be above 0 and finite, not {seconds}")
        if not 0 <= options["seed"] < 2**63:
            raise ConfigurationError(f"the seed is {options['seed']}: it must be 0 or more, and below 2**63")
        workers, name = options["workers"], label(options["strategy"])
        limits = {key: options[key] for key in _LIMITS}
        if all(limit is None for limit in limits.values()):
            limits["epochs"] = 1
        compute = Compute.of({key: options[key] for key in _COMPUTE})
        budget = Budget(**limits, target=options["target"])
        strategy: Strategy = instantiate(STRATEGIES, options["strategy"], Strategy)
        tolerance = _tolerance(strategy, {key: options[key] for key in _TOLERANCE}, workers)
        codec, downlink = uplink_and_downlink(options["codec"])
        check_codecs(strategy, name, codec, downlink)
        given, servers = options["optimizer"], strategy.server_optimizer
        optimizer = optimizer_table(given, strategy.default_optimizer)
        used = strategy.world_size(workers)
        check_aggregation(strategy, codec[0], downlink, used)
        if options["evaluate_clients"] and strategy.replicas == "parts":
            raise ConfigurationError(
                f"evaluate_clients: with {name!r} each worker holds a part of the model, so none can evaluate all of it"
            )
        _check_test_share(options["test_per_client"], evaluated=options["evaluate_clients"])
        privacy = Privacy.of(options["privacy"])
        if privacy is not None:
            privacy.check(strategy, name, codec, used)
            if options["evaluate_clients"]:
                raise ConfigurationError(
                    "evaluate_clients reports metrics of each client's data, which privacy protects: remove one of the two"
                )
        worker_resources = resources_of("worker_resources", options["worker_resources"])
        compute.check_device(gpu=worker_resources.gpus > 0)
        faults = as_sentences(options["faults"], max(workers, options["max_workers"] or 0))
        track = list(options["track"]) if isinstance(options["track"], Iterator) else options["track"]
        return cls(
            strategy=strategy,
            partition=instantiate(PARTITIONERS, options["partition"], Callable),
            codec=codec,
            downlink=downlink,
            optimizer=_optimizer(strategy, optimizer, options),
            given_optimizer=given,
            server_optimizer=None if servers is None else OptimizerSettings.of(*named(servers)),
            workers=used,
            batch_size=options["batch_size"] * compute.accumulate,
            budget=budget,
            stopping=Stopping(**{key: options[key] for key in _STOPPING}),
            tolerance=tolerance,
            every={key: options[key] for key in (*_EVERY, "checkpoint_seconds")},
            faults=faults,
            privacy=privacy,
            evaluate_clients=options["evaluate_clients"],
            test_per_client=options["test_per_client"],
            loading=Loading.of(options["loader"]),
            compute=compute,
            worker_resources=worker_resources,
            server_resources=server_resources_of(options["server_resources"]),
            peak=Peak(options["peak_flops"], min(worker_resources.gpus, 1.0)),
            seed=options["seed"],
            trackers=trackers_of(track),
            table={
                **options,
                "optimizer": given if isinstance(given, str) else optimizer,
                "epochs": budget.epochs,
                "faults": faults,
                "track": list(track),
                "worker_resources": resources_table(options["worker_resources"]),
                "server_resources": resources_table(options["server_resources"]),
                "privacy": asdict(privacy) if privacy else None,
            },
        )

    @property
    def optimizers(self) -> str:
        """Which optimizer steps where, as one line for people."""
        own = f"optimizer: {self.optimizer} on {self.strategy.steps_on}"
        return own if self.server_optimizer is None else f"{own} · server: {self.server_optimizer}"

    def check_optimizers(self) -> None:
        """Take a trial step with each optimizer; raise `ConfigurationError` if one is unknown or refuses its options."""
        self.optimizer.check()
        if self.server_optimizer is not None:
            self.server_optimizer.check()

    def following(self, model: Model, train_size: int | None) -> Self:
        """Return these settings with the model's own optimizer, if there is one and the user has named no optimizer.

        ``train_size`` is the number of training samples, None if it is not known.

        Raises
        ------
        ConfigurationError : the optimizer of the model cannot be used.
        """
        named_by_user = self.given_optimizer is not None and "name" in optimizer_table(self.given_optimizer, {})
        own = getattr(model, "own_optimizer", None)
        if own is None or named_by_user:
            return self
        avoid_compiler_import()  # the model calls constructors of torch.optim
        default = own(self.length(train_size))
        if default is None:
            return self
        suggested = suggestion(default, self.length(train_size))
        table = optimizer_table(self.given_optimizer, suggested.table)
        monitor = self.stopping.monitor or suggested.monitor
        return replace(
            self,
            optimizer=_optimizer(self.strategy, table, self.table),
            stopping=replace(self.stopping, monitor=monitor),
            table={**self.table, "optimizer": table, "monitor": monitor},
        )

    def rounds(self, train_size: int | None) -> int | None:
        """Return the largest number of rounds that the budget allows; None if it is not known."""
        return self.budget.rounds_in_all(train_size, self.samples_per_round(self.workers, train_size or 0))

    def length(self, train_size: int | None) -> RunLength:
        """Return the length of the run with a training set of this size; None: the size is not known."""
        rounds = self.rounds(train_size)
        if rounds is None:
            return RunLength(None, self.budget.epochs)
        epochs = self.budget.epochs
        if train_size is not None:
            passes = rounds * self.samples_per_round(self.workers, train_size) / train_size
            epochs = min(passes, epochs or passes)
        return RunLength(self.strategy.worker_steps(rounds, self.workers), epochs)

    def samples_per_round(self, world_size: int, train_size: int) -> int:
        """Return the samples that ``world_size`` workers process in a round, of a training set of ``train_size`` samples."""
        return self.strategy.samples_per_round(world_size, self.batch_size, train_size)


def _check_test_share(share: float | None, *, evaluated: bool) -> None:
    if share is not None and not 0 < share < 1:
        raise ConfigurationError(f"test_per_client is {share}: it must be between 0 and 1")
    if share is not None and not evaluated:
        raise ConfigurationError("test_per_client is for the evaluation of clients: set evaluate_clients too")


def _optimizer(strategy: Strategy, table: Mapping[str, Any], options: Mapping[str, Any]) -> OptimizerSettings:
    made = OptimizerSettings.of(*named(strategy.optimizer_of(table, options["workers"])))
    return replace(made, max_gradient_norm=options["max_gradient_norm"])


def _tolerance(strategy: Strategy, options: Mapping[str, Any], workers: int) -> FaultTolerance:
    tolerance = FaultTolerance(**options)
    tolerance.check(workers)
    return tolerance.of_parts(workers) if strategy.replicas == "parts" else tolerance
