"""Inspection of the data of a run before training: what each worker will hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chimera.core.worker_counts import WorkerCounts
from chimera.data.dataset import TrainingData
from chimera.data.description import described
from chimera.data.provider import PartitionedData
from chimera.data.worker_counts import worker_counts
from chimera.training.experiment.resolve import check_data, split_of
from chimera.training.experiment.settings import Settings
from chimera.training.plugin import nodes_own_data


@dataclass(frozen=True)
class Inspection:
    """The known facts about the data of a run before training.

    Attributes
    ----------
    line : one line about the data; empty if the driver does not have the data.
    counts : counts of the data of each worker; None if they are not shown.
    hidden : why the counts are not shown; empty if they are.
    """

    line: str
    counts: WorkerCounts | None
    hidden: str = ""


def inspect_data(settings: Settings, engine: Any, data: Any) -> Inspection:
    """Read the data of a run and divide it among the workers, without an engine.

    Parameters
    ----------
    engine, data : see `Trainer`.

    Raises
    ------
    ConfigurationError : the data cannot be read or divided.
    """
    if nodes_own_data(engine):
        return Inspection("", None, "each node holds its own data, which the driver does not have")
    train = (split := split_of(data, settings.seed)).train
    share = settings.test_per_client
    check_data(train, settings.workers, settings.tolerance, nodes_own_data=False, test_share=share)
    if reason := hidden(settings):
        return Inspection(described(split), None, reason)
    if hasattr(train, "provider"):
        return Inspection(described(split), None, "workers read a stream, and have no samples of their own")
    provider = PartitionedData(train, settings.partition, settings.batch_size, settings.seed, share)
    return Inspection(described(split), worker_counts(train, provider.orders(settings.workers)))


def hidden(settings: Settings) -> str:
    """Return why the run shows no counts of what its workers hold; empty if it shows them."""
    if settings.privacy is not None:
        return "the run is private ([train.privacy]), so nothing about the data of a single client is shown"
    if settings.strategy.replicas == "parts":
        return "workers of this strategy hold parts of the model, and share the data"
    return ""


def counts_of_run(settings: Settings, train: TrainingData, orders: list[Any]) -> WorkerCounts | None:
    """Return the counts of the workers' data in a run with these orders; None if they are not shown."""
    return None if hidden(settings) else worker_counts(train, orders)
