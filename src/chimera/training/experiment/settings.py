"""An experiment's settings, as they were given and as they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.core.optimizer_table import optimizer_table
from chimera.data.partition import PARTITIONERS, Partitioner
from chimera.strategies.strategy import STRATEGIES, Strategy
from chimera.training.experiment.resolve import check_aggregation, check_codecs
from chimera.training.experiment.resources import resources_of, resources_table, server_resources_of
from chimera.training.fault_tolerance.injection import as_sentences
from chimera.training.fault_tolerance.settings import Tolerance
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.plugin import both_ways, label, made, named
from chimera.training.privacy.settings import Privacy
from chimera.training.progress.budget import Budget

_LIMITS = "epochs", "rounds", "max_seconds", "max_bytes"
_TOLERANCE = "min_workers", "max_workers", "on_worker_loss", "max_restarts", "worker_timeout_s"
_EVERY = "log_every", "evaluate_every", "checkpoint_every", "snapshot_every"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `Trainer` makes of its options, but for model, data and engine; all of it checked, as far as it can be without data.

    Attributes
    ----------
    strategy, partition : as objects.
    codec, downlink : names and options of the codecs of what workers send, and of what they get.
    optimizer, local_optimizer : what steps the global model, and a worker's copy between two messages.
    workers : how many the strategy uses.
    every : after how many rounds what is done, where that was given.
    faults : as sentences.
    table : the options as plain values, for the file of the experiment.
    """

    strategy: Strategy
    partition: Partitioner
    codec: tuple[str, dict[str, Any]]
    downlink: tuple[str, dict[str, Any]]
    optimizer: OptimizerSettings
    local_optimizer: OptimizerSettings
    workers: int
    batch_size: int
    budget: Budget
    tolerance: Tolerance
    every: Mapping[str, Any]
    faults: Sequence[str]
    privacy: Privacy | None
    evaluate_clients: bool
    worker_resources: Resources
    server_resources: Resources
    seed: int
    table: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings of these options of `Trainer`, all of them.

        Raises
        ------
        ConfigurationError : some of them cannot be used, or not together.
        """
        for key in ("workers", "batch_size", *_EVERY):
            if given[key] is not None and given[key] < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {given[key]}")
        if not 0 <= given["seed"] < 2**63:
            raise ConfigurationError(f"the seed is {given['seed']}: it must be 0 or more, and below 2**63")
        workers, name = given["workers"], label(given["strategy"])
        limits = {key: given[key] for key in _LIMITS}
        if all(limit is None for limit in limits.values()):
            limits["epochs"] = 1
        budget = Budget(**limits, target=given["target"])
        strategy: Strategy = made(STRATEGIES, given["strategy"], Strategy)
        tolerance = _tolerance(strategy, {key: given[key] for key in _TOLERANCE}, workers)
        codec, downlink = both_ways(given["codec"])
        check_codecs(strategy, name, codec, downlink)
        table = optimizer_table(given["optimizer"])
        optimizer, local = _optimizers(strategy, name, table, workers)
        used = strategy.world_size(workers)
        check_aggregation(strategy, codec[0], used)
        if given["evaluate_clients"] and strategy.replicas == "parts":
            raise ConfigurationError(
                f"evaluate_clients: with {name!r} each worker has a part of the model, and none can evaluate the whole"
            )
        privacy = Privacy.of(given["privacy"])
        if privacy is not None:
            privacy.check(strategy, name, codec, used)
            if given["evaluate_clients"]:
                raise ConfigurationError(
                    "evaluate_clients tells what privacy keeps: how each one's own data fare; leave out one"
                )
        faults = as_sentences(given["faults"], max(workers, given["max_workers"] or 0))
        return cls(
            strategy=strategy,
            partition=made(PARTITIONERS, given["partition"], Callable),
            codec=codec,
            downlink=downlink,
            optimizer=optimizer,
            local_optimizer=local,
            workers=used,
            batch_size=given["batch_size"],
            budget=budget,
            tolerance=tolerance,
            every={key: given[key] for key in _EVERY},
            faults=faults,
            privacy=privacy,
            evaluate_clients=given["evaluate_clients"],
            worker_resources=resources_of("worker_resources", given["worker_resources"]),
            server_resources=server_resources_of(given["server_resources"]),
            seed=given["seed"],
            table={
                **given,
                "optimizer": given["optimizer"] if isinstance(given["optimizer"], str) else table,
                "epochs": budget.epochs,
                "faults": faults,
                "worker_resources": resources_table(given["worker_resources"]),
                "server_resources": resources_table(given["server_resources"]),
                "privacy": asdict(privacy) if privacy else None,
            },
        )

    def samples_per_round(self, world_size: int, train_size: int) -> int:
        """Return how many samples so many workers process in a round, of a training set of that size."""
        return self.strategy.samples_per_round(world_size, self.batch_size, train_size)


def _tolerance(strategy: Strategy, given: Mapping[str, Any], workers: int) -> Tolerance:
    tolerance = Tolerance(**given)
    tolerance.check(workers)
    return tolerance.of_parts(workers) if strategy.replicas == "parts" else tolerance


def _optimizers(
    strategy: Strategy, name: str, table: Mapping[str, Any], workers: int
) -> tuple[OptimizerSettings, OptimizerSettings]:
    """Return what steps the global model, and what steps a worker's between two messages."""
    own = strategy.server_optimizer
    if own is not None and table != {"name": "sgd"}:
        raise ConfigurationError(
            f"{name} brings the optimizer of its servers, {own['name']}: say how it steps by the strategy's "
            "options, and leave out optimizer"
        )
    optimizer = OptimizerSettings.of(*named(own or table), strategy.sgd_learning_rate)
    local = strategy.local_optimizer_of(workers)
    return optimizer, optimizer if local is None else OptimizerSettings.of(*named(local))
