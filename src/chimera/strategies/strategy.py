"""The protocol of strategies: generators of rounds (docs/architecture.md, section 4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from chimera.core.registry import Registry
from chimera.core.trace import TraceRow
from chimera.strategies.cluster import Cluster
from chimera.strategies.model_partition import ModelPartition, SplitPartition

Family: TypeAlias = Literal[
    "single",
    "synchronous",
    "asynchronous",
    "local steps",
    "federated",
    "decentralised",
    "model-parallel",
    "redundant work",
]


@dataclass(frozen=True)
class Round:
    """Work that a strategy has issued, and that may still be in flight.

    Attributes
    ----------
    done : refs to small values, available when the round is over. Getting them raises the errors of the round.
    rounds : number of rounds that this value covers; default 1, more if one call runs several steps.
    staleness : for each applied gradient, the number of updates between reading the weights and applying the gradient. Empty
        for strategies without stale gradients, such as synchronous ones.
    batches : number of batches in the gradients, if the strategy counts them itself (see `Strategy.counts`); else 0.
    computed : refs that are available when workers have computed their part of the round and wait for servers. The driver does
        its own work at that moment, because it then takes no processor core from a worker.
    """

    done: Sequence[Any]
    rounds: int = 1
    staleness: Sequence[int] = ()
    batches: int = 0
    computed: Sequence[Any] = ()


@dataclass(frozen=True)
class Aggregated:
    """How servers aggregate the vectors of a round. The trainer rejects unsuitable aggregation rules before the run starts.

    Attributes
    ----------
    rule : name of the aggregation, or a table of ``name`` and its options.
    contributors : number of workers that send a vector.
    shards : number of servers that hold the parameters.
    weighted : whether workers multiply their vectors by a weight, such as their number of samples.
    reached : whether workers send weights, and not changes or gradients.
    by_samples : whether the result depends on the workers' numbers of samples in another way.
    edges : number of edge servers, which take the mean of a part of the workers and forward it.
    """

    rule: str | Mapping[str, Any]
    contributors: int
    shards: int = 1
    weighted: bool = False
    reached: bool = False
    by_samples: bool = False
    edges: int = 0


class Strategy(ABC):
    """The order of the calls on workers and servers.

    A strategy yields rounds forever; the trainer stops when the budget is used up. After the loss of a worker, the trainer
    calls `rounds` again on the same cluster. `rounds` then continues from what servers and workers hold. A strategy with state
    of its own implements `state` and `restore`.

    Attributes
    ----------
    family : heading of the strategy in a survey; every registered strategy sets it.
    sends : how vectors are sent, which decides the codecs that can be used. ``messages`` go to servers and back, and any codec
        encodes them. ``peers`` are messages between workers. ``collectives`` need a codec with an all-reduce form. ``nothing``
        means that no vectors are sent, or float32 only.
    carries : whether the strategy itself adds the error of a codec to the next message. The codec must not do so then.
    by_rows : whether workers may hold only those rows of the model that their batches need.
    replicas : the workers' copies of the model, if there are no servers. ``equal`` copies are identical, and one represents
        all. With ``own`` copies differ, and checkpoints hold all of them (decisions/0021). With ``parts`` each worker holds a
        part, see `parts` and `holders`. With ``none`` a worker has no copy between two calls: each call brings all parameters,
        and workers in one process use one model object in turn (decisions/0029).
    counts : whether each `Round` states its number of batches, because workers compute some batches twice or in vain.
    private : whether a worker sends one change of its weights in a round and nothing else, servers take the mean, and the
        strategy calls workers by `Cluster.soonest`. Such changes can be clipped, get noise, and be added under masks.
    default_optimizer : the table of the experiment's optimizer if the user sets none. This optimizer turns gradients into
        steps, see `steps_on`.
    server_optimizer : the table of the optimizer with which servers step by the workers' changes, if workers take local steps;
        None if workers send gradients, or nothing.
    moved : former options by name, each with its replacement.
    worker_extensions : the extensions whose calls this strategy makes at workers: registered names, or classes derived from
        `chimera.training.worker.extension.WorkerExtension`.
    """

    family: ClassVar[Family]
    sends: ClassVar[Literal["messages", "peers", "collectives", "nothing"]] = "messages"
    carries: ClassVar[bool] = False
    by_rows: ClassVar[bool] = True
    replicas: ClassVar[Literal["equal", "own", "parts", "none"]] = "equal"
    counts: ClassVar[bool] = False
    private: ClassVar[bool] = False
    default_optimizer: ClassVar[Mapping[str, Any]] = {"name": "adam", "lr": 1e-3}
    server_optimizer: Mapping[str, Any] | None = None
    moved: ClassVar[Mapping[str, str]] = {}
    worker_extensions: ClassVar[Sequence[str | type]] = ()

    @abstractmethod
    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield rounds forever."""

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return refs of the pieces of the model as it is when all issued rounds are over; for evaluation and checkpoints."""
        if holders := self.holders(cluster):
            return [first.weights() for first, *_ in holders]
        return [server.model() for server in cluster.shards] or [cluster.workers[0].weights()]

    def holders(self, cluster: Cluster) -> Sequence[Sequence[Any]]:  # noqa: ARG002 - most have the whole model everywhere
        """Return the workers that hold each part of the model after all issued rounds; empty if the model is not cut."""
        return ()

    def measures(self, cluster: Cluster) -> Mapping[str, Any]:  # noqa: ARG002 - most have nothing to add
        """Return refs of extra metrics of an evaluation, by name, as they are when all issued rounds are over."""
        return {}

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:  # noqa: B027 - most learn nothing from it
        """Read the trace rows of ended calls of workers and servers, before the trainer writes them to the trace of the run."""

    def keeps(self, model: Any) -> Collection[int]:  # noqa: ARG002 - most keep nothing
        """Return the places, in the model's layout, of parameters that stay with each worker. Its buffers then stay too."""
        return ()

    def world_size(self, workers: int) -> int:
        """Return the number of workers that the strategy uses, of the ``workers`` that the user asked for.

        Raises
        ------
        ConfigurationError : the strategy cannot use this number.
        """
        return workers

    def parts(self, workers: int) -> ModelPartition | SplitPartition | None:  # noqa: ARG002 - most have the whole model everywhere
        """Return how the model is cut over ``workers`` workers; None if each worker holds the whole model."""
        return None

    def holds(self, workers: int) -> Sequence[Sequence[int]] | None:  # noqa: ARG002 - most have their own only
        """Return the blocks of a step that each of ``workers`` workers holds, its own first; None if each holds only its own.

        A block is the batch of one reader, and there are as many readers as blocks. If there are as many blocks as workers,
        block i is the batch of worker i.
        """
        return None

    def batches_per_round(self, workers: int) -> int:
        """Return the number of batches computed in a round; by default one for each worker."""
        return workers

    def samples_per_round(self, workers: int, batch_size: int, train_size: int) -> int:  # noqa: ARG002 - most count batches
        """Return the number of samples that all workers process in a round, with a training set of ``train_size``."""
        return self.batches_per_round(workers) * batch_size

    def aggregated(self, workers: int) -> Aggregated | None:  # noqa: ARG002 - whatever their number
        """Return how servers aggregate the vectors of a round of ``workers`` workers; None if the user cannot choose it."""
        return None

    def steps_per_round(self) -> int:
        """Return the number of batches that a worker trains on in a round; 1 if workers differ in it."""
        return 1

    def worker_steps(self, rounds: int, workers: int) -> int:  # noqa: ARG002 - most do not depend on it
        """Return the number of steps that a worker's optimizer takes in ``rounds`` rounds, for schedules."""
        return rounds * self.steps_per_round()

    def figures(self) -> Mapping[str, Any]:
        """Return extra values for the summary of a run, by name, as plain values."""
        return {}

    def optimizer_of(self, optimizer: Mapping[str, Any], workers: int) -> Mapping[str, Any]:  # noqa: ARG002 - most change nothing
        """Return the table by which gradients become steps in a run of ``workers`` workers with the experiment's ``optimizer``.

        Raises
        ------
        ConfigurationError : the strategy cannot use this optimizer.
        """
        return optimizer

    @property
    def steps_on(self) -> Literal["workers", "servers"]:
        """Where the experiment's optimizer steps: on servers if workers send them gradients, else on workers."""
        return "servers" if self.sends == "messages" and self.server_optimizer is None else "workers"

    def state(self) -> Mapping[str, Any]:
        """Return the state that a restart needs, as plain values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most strategies have no state
        """Restore a state that `state` returned."""


STRATEGIES: Registry[Strategy] = Registry("strategy", "chimera.strategies", Strategy, family="strategies")
