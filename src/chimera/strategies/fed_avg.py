"""FedAvg (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data")."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from chimera.core.errors import ConfigurationError
from chimera.core.optimizer_table import optimizer_table
from chimera.strategies.participation import Participation, Work
from chimera.strategies.strategy import STRATEGIES, Aggregated, Cluster, Family, Round, Strategy


@STRATEGIES.register("fed-avg")
class FedAvg(Strategy):
    """Each round workers train ``local_steps`` batches from the same weights, and the servers step by their mean change.

    The experiment's optimizer is the servers': ``sgd`` with a learning rate of 1, the default, makes the average of what
    the workers reached the new model (local SGD). Momentum there is that of FedAvgM (Hsu et al. 2019) and, with Nesterov's
    and a local AdamW, of DiLoCo (Douillard et al. 2023); ``adam`` there makes FedAdam (Reddi et al. 2021). A rate above 1
    moves further than the average.

    Parameters
    ----------
    local_steps : batches that a worker trains on between reading the weights and sending its change.
    local_optimizer : what it steps with: any of torch.optim or of one's own, by name, as a table with its options and a
        ``schedule``, or as an object, see `optimizer_table`.
    local_learning_rate : of that, unless the table says; by default 0.1 for ``sgd``, and torch's default for others.
    scaled : whether the local learning rate is multiplied by the number of workers: their mean takes so much shorter steps
        (the linear scaling rule of Goyal et al. 2017, "Accurate, Large Minibatch SGD").
    keep_state : whether the local optimizer goes on with its momenta in the next round, which then are part of checkpoints;
        if not, it begins each round anew.
    local_epochs : in place of ``local_steps``: how often a worker goes through its own share of the data in a round, rounded up
        to whole batches. Who has more data takes more steps then, and a ``schedule`` of the local optimizer counts rounds.
    fraction, over_selection, deadline_s, stragglers, seed : who takes part in a round, see `Participation`. Where more are
        asked than needed, or a round has a deadline, who is late or dies is left out; else the round is asked for again,
        and those who had answered answer the same.
    weighted : whether a worker counts by how many samples it has, as in the paper, or all count alike.
    send : what a worker sends: its ``change``, which codecs pack well and rows can be told by; or the ``weights`` that it
        reached, as in the paper, whose mean is exact: rounding a difference costs bits.
    aggregation : what the servers make of what workers send, a name or a table: the ``mean``; where each worker changes few
        rows of a table, the mean of those that ``touched`` a row, or the ``sum``; or one that withstands attackers, such as
        ``median`` (docs/robust.md).
    shards : over how many servers the parameters are spread.
    """

    family: ClassVar[Family] = "federated"
    private = True
    replicas: ClassVar[Literal["equal", "own", "none"]] = "none"
    sgd_learning_rate = 1.0
    takes_partial: ClassVar[bool] = False  # whether the results of stragglers count

    def __init__(
        self,
        *,
        local_steps: int = 10,
        local_epochs: float | None = None,
        local_optimizer: Any = "sgd",
        local_learning_rate: float | None = None,
        scaled: bool = False,
        keep_state: bool = True,
        fraction: float = 1.0,
        over_selection: float = 1.0,
        deadline_s: float | None = None,
        stragglers: float = 0.0,
        weighted: bool = False,
        send: Literal["change", "weights"] = "change",
        aggregation: str | Mapping[str, Any] = "mean",
        shards: int = 1,
        seed: int = 0,
    ) -> None:
        for key, value in (("local_steps", local_steps), ("shards", shards)):
            if value < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {value}")
        if local_epochs is not None and not 0 < local_epochs < math.inf:
            raise ConfigurationError(f"local_epochs must be above 0, not {local_epochs}")
        if send not in ("change", "weights"):
            raise ConfigurationError(f"send is 'change' or 'weights', not {send!r}")
        self.local_optimizer = _table(local_optimizer, local_learning_rate)
        self._local_steps, self._local_epochs, self._keep_state = local_steps, local_epochs, keep_state
        self._participation = Participation(fraction, over_selection, deadline_s, stragglers, seed)
        self._weighted, self._shards = weighted, shards
        if scaled and "lr" not in self.local_optimizer:
            raise ConfigurationError("scaled multiplies the local learning rate: say which, by local_learning_rate")
        self._scaled = scaled
        self._reached, self._aggregation = send == "weights", aggregation
        self._rule: Mapping[str, Any] | None = None  # what changes local gradients, see `LocalRule`
        self._samples: Mapping[str, float] = {}  # of each worker, where they count
        self._steps: Mapping[str, int] = {}  # in a round, where workers differ in that

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""
        servers = cluster.servers(self._shards)
        weights = [server.weights() for server in servers]
        self._survey(cluster)
        for round_ in itertools.count(cluster.round):
            plan = self._plan(cluster, round_)
            # Not by name: nobody is to keep the answers of a round, of which each is a model's size, while the next one runs.
            weights, done = self._step(servers, plan, self._answers(cluster, plan, round_, weights))
            yield Round(done)

    def _survey(self, cluster: Cluster) -> None:
        """Ask the workers what plans depend on."""
        names = [worker.name for worker in cluster.workers]
        if self._weighted:
            shares = cluster.get([worker.share() for worker in cluster.workers])
            self._samples = dict(zip(names, shares, strict=True))
        if self._local_epochs is not None:
            batches = cluster.get([worker.batches_per_pass() for worker in cluster.workers])
            self._steps = {n: math.ceil(self._local_epochs * b - 1e-9) for n, b in zip(names, batches, strict=True)}

    def _plan(self, cluster: Cluster, round_: int) -> list[Work]:
        """Return who does what in a round, in rank order; stragglers, who do a part only, are left out."""
        chosen = self._participation.chosen(cluster.workers, round_)
        steps = [self._steps.get(worker.name, self._local_steps) for worker in chosen]
        plan = [Work(worker, count, round_ * count) for worker, count in zip(chosen, steps, strict=True)]
        plan = self._participation.cut_short(plan, round_)
        return plan if self.takes_partial else [work for work in plan if not work.partial]

    def _options(self, plan: Sequence[Work], round_: int) -> list[dict[str, Any]]:
        """Return what goes with the call of each of the plan, see `Learner.delta`."""
        common = {
            "keep_state": self._keep_state,
            "reached": self._reached,
            "rule": self._rule,
            "clock": None if self._local_epochs is None else round_,
            "round_": round_,
        }
        return [{**common, "weight": weight} for weight in self._weights(plan)]

    def _weights(self, plan: Sequence[Work]) -> list[float]:
        """Return by what each counts, so that the plain mean is the one that is wanted; of others, they differ by a factor."""
        if not self._samples:
            return [1.0] * len(plan)
        samples = [self._samples.get(work.worker.name, 1) for work in plan]
        total = sum(samples)
        return [each * len(plan) / total for each in samples]

    def _answers(
        self, cluster: Cluster, plan: Sequence[Work], round_: int, weights: Sequence[Any]
    ) -> Mapping[str, list[Any]]:
        """Let those of the plan train; return the answers that make the round, by the names of the workers, in rank order."""
        calls = {work.worker.name: (work, own) for work, own in zip(plan, self._options(plan, round_), strict=True)}

        def ask(worker: Any) -> list[Any]:
            work, options = calls[worker.name]
            return self._ask(work, cluster.addressed(worker, weights, work.steps, first=work.first), options)

        chosen = [work.worker for work in plan]
        all_of_them = self._participation.waits_for_all
        count = None if all_of_them else min(self._participation.wanted(len(cluster.workers)), len(chosen))
        return cluster.soonest(chosen, ask, count, self._participation.deadline_s)

    def _ask(self, work: Work, weights: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Let one worker train from the weights; return the refs of its messages, one for each of theirs."""
        return work.worker.delta(*weights, steps=work.steps, first=work.first, returns=len(weights), **options)  # type: ignore[no-any-return]

    def _step(
        self, servers: Sequence[Any], plan: Sequence[Work], answers: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """Let the servers step by the mean of the answers; return refs of the new weights, and of what was done."""
        scale = 1.0
        if len(answers) < len(plan):
            there = [work for work in plan if work.worker.name in answers]
            scale = self._weights(there)[0] / self._weights(plan)[plan.index(there[0])]
        options = {"aggregation": self._aggregation, "reached": self._reached, "scale": scale}
        updates = [
            server.update(*piece, **options, returns=2)
            for server, piece in zip(servers, zip(*answers.values(), strict=True), strict=True)
        ]
        weights, done = [list(refs) for refs in zip(*updates, strict=True)]
        return weights, done

    def local_optimizer_of(self, workers: int) -> Mapping[str, Any]:
        """Return the table of the local optimizer."""
        table = dict(self.local_optimizer or {})
        return {**table, "lr": table["lr"] * self._participation.wanted(workers)} if self._scaled else table

    def aggregated(self, workers: int) -> Aggregated:
        """Return what its servers make of what those that take part send."""
        givers = self._participation.wanted(workers)
        return Aggregated(self._aggregation, givers, self._shards, weighted=self._weighted, reached=self._reached)

    def steps_per_round(self) -> int:
        """Return how many batches a worker trains on in a round; 1 where they differ in that."""
        return self._local_steps if self._local_epochs is None else 1

    def batches_per_round(self, workers: int) -> int:
        """Return how many batches all that are asked train on."""
        return self._participation.asked(workers) * self._local_steps

    def samples_per_round(self, workers: int, batch_size: int, train_size: int) -> int:
        """Return how many samples that are; of epochs, about."""
        if self._local_epochs is None:
            return super().samples_per_round(workers, batch_size, train_size)
        return max(round(self._local_epochs * train_size * self._participation.asked(workers) / workers), 1)


def _table(optimizer: Any, learning_rate: float | None) -> dict[str, Any]:
    """Return the table of an optimizer, with a learning rate."""
    table = optimizer_table(optimizer)
    if learning_rate is not None:
        if "lr" in table:
            raise ConfigurationError("local_learning_rate and the lr of local_optimizer say the same: give one of them")
        if not learning_rate > 0:
            raise ConfigurationError(f"local_learning_rate must be above 0, not {learning_rate}")
        table["lr"] = learning_rate
    elif table.get("name") == "sgd":
        table.setdefault("lr", 0.1)
    return table
