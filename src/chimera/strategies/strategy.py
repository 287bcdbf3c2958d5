"""A strategy is a generator of rounds (docs/architecture.md, section 4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from chimera.core.registry import Registry
from chimera.core.trace import TraceRow
from chimera.strategies.parts import Halves, Parts

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
    """What a strategy yields: work that it has issued and that may still be under way.

    Attributes
    ----------
    done : refs to small values that stand once the round is over; they raise what went wrong.
    rounds : how many rounds this is; more than one where one call runs many steps.
    staleness : of each gradient that was applied: how many updates came between reading the weights and applying it;
        nothing where that says nothing, as in synchronous strategies.
    batches : of how many the gradients went in, where the strategy counts them itself.
    computed : refs that stand once workers have done their part of the round and wait for servers: the moment at which
        the driver, which issues and counts rounds, keeps nobody from a core.
    """

    done: Sequence[Any]
    rounds: int = 1
    staleness: Sequence[int] = ()
    batches: int = 0
    computed: Sequence[Any] = ()


@dataclass(frozen=True)
class Aggregated:
    """What servers make of the vectors of a round, so that a rule which cannot is refused before anything runs.

    Attributes
    ----------
    rule : name of the aggregation, or a table of ``name`` and its options.
    givers : how many workers send a vector.
    shards : over how many servers these are spread.
    weighted : whether workers multiply what they send by how much they count.
    reached : whether they send weights, and not changes or gradients.
    by_samples : whether what servers make of the vectors depends on the workers' numbers of samples in another way.
    """

    rule: str | Mapping[str, Any]
    givers: int
    shards: int = 1
    weighted: bool = False
    reached: bool = False
    by_samples: bool = False


class Cluster(Protocol):
    """The engine as a strategy sees it."""

    @property
    def workers(self) -> Sequence[Any]:
        """The living learners, in rank order."""

    @property
    def ranks(self) -> Sequence[int]:
        """Their ranks."""

    @property
    def dealt(self) -> Sequence[str]:
        """The names of those among whom the data is dealt, by their places in `Strategy.holds`; some may be gone."""

    @property
    def shards(self) -> Sequence[Any]:
        """The parameter shards that were made, in order; none where nobody asked for servers."""

    @property
    def round(self) -> int:
        """How many rounds are over."""

    @property
    def horizon(self) -> int:
        """How many rounds the trainer wants before it next looks at the model, at least 1."""

    def servers(self, shards: int) -> Sequence[Any]:
        """Return the parameter shards; made from the initial weights when first asked for."""

    def addressed(
        self, worker: Any, weights: Sequence[Any], batches: int = 1, shard: int | None = None, first: int | None = None
    ) -> Sequence[Any]:
        """Return ``weights``, the newest that all servers, or the one of ``shard``, returned, as this worker is to get them.

        It gets them in its next call.

        They are the same for all workers, unless the codec sends each what has changed since its last message, or the rows that
        the next ``batches`` of this one need, or those from the number ``first`` on: as many as that call computes.
        """

    def gather(self, ask: Callable[[Any], Any], quorum: float = 1.0, timeout_s: float | None = None) -> list[Any]:
        """Ask every free worker, and return what ``quorum`` of them answered, in rank order.

        With a quorum of 1 and no time limit nothing is waited for: the answers are refs, and a loss shows where they are used.
        Otherwise the call returns when the first ``quorum`` (a share of the living workers) have answered or the time is
        over; who is late is not asked again before that old answer has come, and the answer is dropped.
        """

    def soonest(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Ask those of ``workers`` that are free, and return what the first ``count`` answered, by name, in rank order.

        Without a count and a time limit all are asked, and nothing is waited for: a loss shows where the answers are used.
        Otherwise so many, or fewer: those who have when the time is over, or when the others are dead. Who is late, as with
        `gather`, is not asked again before the old answer has come. In a private run the answers may be masked: all of them
        together are for one `ParameterShard.update`.

        Raises
        ------
        ActorLost : nobody has answered, and somebody is dead.
        TooFewWorkersError : nobody has answered in time.
        """

    def until(
        self,
        enough: Callable[[Collection[str]], bool],
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        least: int = 1,
        timeout_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Do as `soonest`, but go on until at least so many have answered, and these, by their names, are ``enough``."""

    def first(self, pending: Mapping[str, Any]) -> str:
        """Wait until one of the workers has answered, and return its name; of several, the first to have done so.

        ``pending`` has what was asked of each, by its name: a ref, or the list of refs of one call. Ties go to the lower rank.

        Raises
        ------
        ActorLost : one of them is dead; the trainer leaves it out, and calls `Strategy.rounds` anew.
        """

    def group(self, workers: Sequence[Any] | None = None) -> Any:
        """Return a group of ``workers``, by default of all that live, in rank order."""

    def get(self, refs: Any) -> Any:
        """Return values to the driver; for small ones."""


class Strategy(ABC):
    """Who does what next. It drives the workers for ever; the trainer stops asking when the budget is used.

    `rounds` may be called again on the same cluster, after a worker was lost: it then goes on from what servers and workers
    hold. A strategy with a state of its own beyond theirs implements `state` and `restore`.

    Attributes
    ----------
    family : under which heading a survey would have it; every registered strategy says it.
    sends : how vectors travel, and so what a codec can do: as messages to servers and back, which any codec packs; as messages
        to peers; in the collectives of a group, for which a codec needs an all-reduce form; or not at
        all, or as float32 only.
    carries : whether it keeps what a codec leaves out for the next message itself, so that the codec must not.
    by_rows : whether workers may hold only those rows of the model that their batches need.
    replicas : whether the workers' copies of the model, where there are no servers, are equal, so that one stands for all, or
        each one's own, so that checkpoints hold all of them (decisions/0021), or each has but a part, see `parts`, `holders`.
        With ``none`` a worker has no copy between two calls: each call brings all parameters, and workers in one process
        use one model object in turn (decisions/0029).
    counts : whether a `Round` says how many batches went into it, since workers compute some twice, or for nothing.
    private : whether all that a worker sends in a round is one change of its weights, of which servers take the mean, asked for
        by `Cluster.soonest`: so that it can be clipped, get noise, and be added under masks.
    local_optimizer : a table of the optimizer by which workers step between two messages, where they do.
    server_optimizer : a table of the optimizer that servers step by, where the strategy brings it, and not the experiment.
    worker_extensions : the extensions whose calls this strategy makes at workers, by registered name or as classes derived from
        `chimera.training.worker.extension.WorkerExtension`.
    sgd_learning_rate : that of the experiment's ``sgd`` where the experiment says none; without it, torch's.
    """

    family: ClassVar[Family]
    sends: ClassVar[Literal["messages", "peers", "collectives", "nothing"]] = "messages"
    carries: ClassVar[bool] = False
    by_rows: ClassVar[bool] = True
    replicas: ClassVar[Literal["equal", "own", "parts", "none"]] = "equal"
    counts: ClassVar[bool] = False
    private: ClassVar[bool] = False
    local_optimizer: Mapping[str, Any] | None = None
    server_optimizer: Mapping[str, Any] | None = None
    sgd_learning_rate: ClassVar[float | None] = None
    worker_extensions: ClassVar[Sequence[str | type]] = ()

    @abstractmethod
    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield rounds for ever."""

    def model(self, cluster: Cluster) -> Sequence[Any]:
        """Return refs of the model as it is when all rounds issued are over, piece by piece; for whoever looks at it."""
        if holders := self.holders(cluster):
            return [first.weights() for first, *_ in holders]
        return [server.model() for server in cluster.shards] or [cluster.workers[0].weights()]

    def holders(self, cluster: Cluster) -> Sequence[Sequence[Any]]:  # noqa: ARG002 - most have the whole model everywhere
        """Return who has which part of the model when all rounds issued are over, part by part; none if it is not cut."""
        return ()

    def measures(self, cluster: Cluster) -> Mapping[str, Any]:  # noqa: ARG002 - most have nothing to add
        """Return refs of what stands beside loss and metrics at an evaluation, by name, when all rounds issued are over."""
        return {}

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:  # noqa: B027 - most learn nothing from it
        """Look at the calls that ended, of workers and servers, before these rows go into the trace of the run."""

    def keeps(self, model: Any) -> Collection[int]:  # noqa: ARG002 - most keep nothing
        """Return the places, in the model's layout, of the parameters that stay with each worker; its buffers do then too."""
        return ()

    def world_size(self, workers: int) -> int:
        """Return how many of the ``workers`` asked for it uses.

        Raises
        ------
        ConfigurationError : it cannot do with so many.
        """
        return workers

    def parts(self, workers: int) -> Parts | Halves | None:  # noqa: ARG002 - most have the whole model everywhere
        """Return how the model is cut over so many workers, where each holds but a part of it."""
        return None

    def holds(self, workers: int) -> Sequence[Sequence[int]] | None:  # noqa: ARG002 - most have their own only
        """Return which blocks of a step each of so many workers holds, its own first; None if nobody holds another's.

        A block is the batch of one of as many readers as there are blocks: without more of them than workers, that of a worker.
        """
        return None

    def batches_per_round(self, workers: int) -> int:
        """Return how many batches are computed in a round: one by each of the ``workers``, unless it says otherwise."""
        return workers

    def samples_per_round(self, workers: int, batch_size: int, train_size: int) -> int:  # noqa: ARG002 - most count batches
        """Return how many samples all of them process in a round, of a training set of ``train_size``."""
        return self.batches_per_round(workers) * batch_size

    def aggregated(self, workers: int) -> Aggregated | None:  # noqa: ARG002 - whatever their number
        """Return what its servers make of the vectors of a round of so many workers, where a user says how."""
        return None

    def steps_per_round(self) -> int:
        """Return by how many batches a worker goes on in a round; where workers differ in that, it is 1."""
        return 1

    def figures(self) -> Mapping[str, Any]:
        """Return what the summary of a run should say besides, as plain values by their names."""
        return {}

    def local_optimizer_of(self, workers: int) -> Mapping[str, Any] | None:  # noqa: ARG002 - whatever their number
        """Return the table of the optimizer by which so many workers step between two messages, where they do."""
        return self.local_optimizer

    def state(self) -> Mapping[str, Any]:
        """Return what a restart needs, as plain values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most strategies have no state
        """Take back what `state` returned."""


STRATEGIES: Registry[Strategy] = Registry("strategy", "chimera.strategies", Strategy)
