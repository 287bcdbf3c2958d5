"""FedAvg (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data")."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from chimera.core.errors import ConfigurationError
from chimera.core.low_rank import adapter_rank
from chimera.strategies.cluster import Cluster
from chimera.strategies.hierarchy import Hierarchy, Site
from chimera.strategies.participation import Participation, Work
from chimera.strategies.site_rounds import SiteRounds
from chimera.strategies.strategy import STRATEGIES, Aggregated, Family, Round


@STRATEGIES.register("fed-avg")
class FedAvg(SiteRounds):
    """Each round, workers train ``local_steps`` batches from the same weights; servers step by the mean of their changes.

    In round t, worker i trains from w_t to w_i. The servers step by sum_i (n_i / n) (w_i - w_t), with n_i samples of worker i;
    all workers have equal weight unless ``weighted``. Workers take local steps with the experiment's optimizer. Servers step
    with ``server_optimizer``:

    - ``sgd`` with learning rate 1 (default): the new model is the mean of the workers' weights. A rate above 1 moves beyond the
      mean.
    - ``sgd`` with momentum: FedAvgM (Hsu et al. 2019). With Nesterov momentum and AdamW on workers: DiLoCo (Douillard et al.
      2023).
    - ``fed-adam``: FedAdam (Reddi et al. 2021).

    Parameters
    ----------
    local_steps : batches that a worker trains on between reading the weights and sending its change; default 10.
    server_optimizer : the servers' optimizer; default ``sgd`` with learning rate 1. See `LocalSteps`.
    scaled : whether the learning rate of workers is multiplied by their number, because the mean shortens steps by that factor;
        default False. This is the linear scaling rule (Goyal et al. 2017, "Accurate, Large Minibatch SGD").
    keep_state : whether the workers' optimizers keep their momenta for the next round (default). They are then part of
        checkpoints. If not, each round starts with a new optimizer.
    local_epochs : passes of a worker over its own data in a round, rounded up to whole batches; replaces ``local_steps``.
        Workers with more data then take more steps, and a ``schedule`` of the workers' optimizer counts rounds.
    fraction, over_selection, deadline_s, stragglers, seed : choice of the participants, see `Participation`. With
        over-selection or a deadline, late and failed workers are dropped from the round. Otherwise a failed round is repeated,
        and workers that had answered return the same answers.
    weighted : whether workers are weighted by their numbers of samples, as in the paper; default False, with equal weights.
    send : content of a worker's message. ``change`` (default) compresses well and can be sent by rows. ``weights``, as in the
        paper, gives an exact mean, without the rounding errors of a difference.
    aggregation : rule of the servers, a name or a table; default ``mean``. If each worker changes few rows of a table:
        ``touched`` for the mean over the workers that changed a row, or ``sum``. Against attackers: for instance ``median``
        (docs/explanation/robust.md).
    shards : number of servers over which the parameters are spread; default 1.
    ranks : ranks of the clients' adapters, in the order of the workers; the list is repeated if there are more workers.
        Default: all clients train all ranks. A client gets and trains the first ranks only. The servers take the mean of each
        rank over the participants that train it (HetLoRA without pruning: Cho et al. 2024, "Heterogeneous LoRA for Federated
        Fine-tuning of On-Device Foundation Models"). Messages have the size of the largest rank.
    batched : ``auto`` lets clients of one process (engine ``simulated``) take their local steps together where that is faster,
        with the same result except for rounding (docs/explanation/federated.md). Default ``off``.
    hierarchical : edge servers between clients and servers, a table with ``edges`` and ``rounds``, see `Hierarchy`. A round
        then has ``rounds`` rounds of the edge servers, each of which takes the mean of its own clients. ``fraction`` and
        ``over_selection`` apply to the clients of each edge server. Default: none.
    """

    family: ClassVar[Family] = "federated"
    private = True
    replicas: ClassVar[Literal["equal", "own", "none"]] = "none"
    takes_partial: ClassVar[bool] = False  # whether partial results of stragglers count

    def __init__(
        self,
        *,
        local_steps: int = 10,
        local_epochs: float | None = None,
        server_optimizer: Any = None,
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
        ranks: Sequence[int] = (),
        batched: Literal["off", "auto"] = "off",
        hierarchical: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(server_optimizer=server_optimizer)
        self._hierarchy = Hierarchy.of(hierarchical)
        for key, value in (("local_steps", local_steps), ("shards", shards)):
            if value < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {value}")
        if local_epochs is not None and not 0 < local_epochs < math.inf:
            raise ConfigurationError(f"local_epochs must be above 0, not {local_epochs}")
        if batched not in ("off", "auto"):
            raise ConfigurationError(f"batched is 'off' or 'auto', not {batched!r}")
        if send not in ("change", "weights"):
            raise ConfigurationError(f"send is 'change' or 'weights', not {send!r}")
        if ranks and (min(ranks) < 1 or send == "weights" or aggregation != "mean"):
            raise ConfigurationError("ranks must be at least 1, and need send = 'change' and aggregation = 'mean'")
        if ranks and (over_selection > 1 or deadline_s is not None):
            raise ConfigurationError(
                "ranks need the change of each client that is asked: remove over_selection and deadline_s"
            )
        if ranks and self._hierarchy:
            raise ConfigurationError("ranks need the changes of all clients at the servers: remove hierarchical")
        self._local_steps, self._local_epochs, self._keep_state = local_steps, local_epochs, keep_state
        self._participation = Participation(fraction, over_selection, deadline_s, stragglers, seed)
        self._weighted, self._shards, self._batched = weighted, shards, batched == "auto"
        self._scaled, self._ranks = scaled, tuple(ranks)
        self._rank_of: Mapping[str, int] = {}  # rank of the adapters, by worker; empty if all train all ranks
        self._reached, self._aggregation = send == "weights", aggregation
        self._rule: Mapping[str, Any] | None = None  # the rule that changes local gradients, see `LocalRule`
        self._samples: Mapping[str, float] = {}  # by worker; empty if samples do not matter
        self._steps: Mapping[str, int] = {}  # by worker, in a round; empty if all take local_steps
        self._connected: Callable[[Any], bool] | None = None  # whether a worker can be reached now

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""
        servers = cluster.servers(self._shards)
        weights = [server.weights() for server in servers]
        self._connected = cluster.connected
        self._survey(cluster)
        for round_ in itertools.count(cluster.round):
            if self._hierarchy is None:
                ((weights, done),) = self._exchange(cluster, [Site(servers, cluster.workers, weights)], round_)
            else:
                weights, done = self._through_edges(cluster, self._hierarchy, servers, weights, round_)
            yield Round(done)

    def _survey(self, cluster: Cluster) -> None:
        """Ask workers for the numbers of samples and batches that plans need."""
        names = [worker.name for worker in cluster.workers]
        if self._ranks:
            ranks = self._ranks
            self._rank_of = {n: ranks[place % len(ranks)] for n, place in zip(names, cluster.ranks, strict=True)}
        if self._weighted:
            shares = cluster.get([worker.share() for worker in cluster.workers])
            self._samples = dict(zip(names, shares, strict=True))
        if self._local_epochs is not None:
            batches = cluster.get([worker.batches_per_pass() for worker in cluster.workers])
            self._steps = {n: math.ceil(self._local_epochs * b - 1e-9) for n, b in zip(names, batches, strict=True)}

    def _plan(self, workers: Sequence[Any], round_: int, site: int) -> list[Work]:
        """Return the work of each participant of a round, in rank order. Partial work is left out unless it counts."""
        chosen = self._participation.chosen(workers, round_, site, self._connected)
        steps = [self._steps.get(worker.name, self._local_steps) for worker in chosen]
        plan = [Work(worker, count, round_ * count) for worker, count in zip(chosen, steps, strict=True)]
        plan = self._participation.cut_short(plan, round_)
        return plan if self.takes_partial else [work for work in plan if not work.partial]

    def _options(self, plan: Sequence[Work], round_: int, *, kept: bool) -> list[dict[str, Any]]:
        """Return the options of each participant's call, see `Learner.delta`."""
        common: dict[str, Any] = {
            "keep_state": self._keep_state,
            "reached": self._reached,
            "rule": self._rule,
            "clock": None if self._local_epochs is None else round_,
            "round_": round_ if kept else None,
        }
        options = [{**common, **self._factor(weight)} for weight in self._weights(plan)]
        if self._ranks:
            shares = self._shares_of_ranks(plan)
            return [{**own, "shares": each} for own, each in zip(options, shares, strict=True)]
        return options

    def _factor(self, weight: float) -> dict[str, float]:
        """Return the factor of a change as an option; none if all are 1, whichever workers participate."""
        return {"weight": weight} if self._samples else {}

    def _shares_of_ranks(self, plan: Sequence[Work]) -> list[list[float]]:
        """Return, by participant, the factors by which the mean of all changes becomes that over the clients of a rank."""
        own = [self._rank_of[work.worker.name] for work in plan]
        trained_by = [sum(rank > i for rank in own) for i in range(max(own))]
        return [[len(plan) / trained_by[i] for i in range(rank)] for rank in own]

    def _weights(self, plan: Sequence[Work]) -> list[float]:
        """Return the factors by which the plain mean of the answers becomes the weighted mean.

        For another set of participants, all factors differ by one common factor.
        """
        if not self._samples:
            return [1.0] * len(plan)
        samples = [self._samples.get(work.worker.name, 1) for work in plan]
        total = sum(samples)
        return [each * len(plan) / total for each in samples]

    def _ask(self, work: Work, weights: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Start training of one worker from ``weights``; return refs of its messages, one for each server."""
        return work.worker.delta(*weights, steps=work.steps, first=work.first, returns=len(weights), **options)  # type: ignore[no-any-return]

    def _step(
        self, servers: Sequence[Any], plan: Sequence[Work], answers: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """Call the servers to step by the mean of the answers; return refs of the new weights, and of small results."""
        scale = 1.0
        if len(answers) < len(plan):
            there = [work for work in plan if work.worker.name in answers]
            scale = self._weights(there)[0] / self._weights(plan)[plan.index(there[0])]
        options: dict[str, Any] = {"aggregation": self._aggregation, "reached": self._reached, "scale": scale}
        if self._samples:
            options["shares"] = FedAvg._weights(self, [work for work in plan if work.worker.name in answers])
        updates = [
            server.update(*piece, **options, returns=2)
            for server, piece in zip(servers, zip(*answers.values(), strict=True), strict=True)
        ]
        weights, done = [list(refs) for refs in zip(*updates, strict=True)]
        return weights, done

    def optimizer_of(self, optimizer: Mapping[str, Any], workers: int) -> Mapping[str, Any]:
        """Return the table of the workers' optimizer."""
        if not self._scaled or isinstance(optimizer.get("lr"), str):  # the optimizer refuses a text, by its name
            return optimizer
        if "lr" not in optimizer:
            raise ConfigurationError("scaled multiplies the learning rate of workers: set it, train.optimizer.lr")
        return {**optimizer, "lr": optimizer["lr"] * self._participation.wanted(workers)}

    def world_size(self, workers: int) -> int:
        """Return the number of workers; check that each edge server has one."""
        if self._hierarchy is not None:
            self._hierarchy.check(workers)
        return workers

    def aggregated(self, workers: int) -> Aggregated:
        """Return how servers, or edge servers if there are any, aggregate the answers of the participants."""
        sizes = [workers] if self._hierarchy is None else self._hierarchy.sizes(workers)
        return Aggregated(
            self._aggregation,
            min(self._participation.wanted(size) for size in sizes),
            self._shards if self._hierarchy is None else 1,
            weighted=self._weighted,
            reached=self._reached,
            edges=0 if self._hierarchy is None else self._hierarchy.edges,
        )

    def keeps(self, model: Any) -> Collection[int]:
        """Return no parameters; check that the model has adapters of these ranks."""
        if self._ranks and max(self._ranks) > (largest := adapter_rank(model.layout)):
            raise ConfigurationError(f"ranks has {max(self._ranks)}, and the adapters of the model have rank {largest}")
        return ()

    def steps_per_round(self) -> int:
        """Return the number of batches that a worker trains on in a round; 1 if workers differ in it."""
        if self._local_epochs is not None:
            return 1
        return self._local_steps * (1 if self._hierarchy is None else self._hierarchy.rounds)

    def _asked(self, workers: int) -> int:
        """Return the number of times that workers are asked in a round, over all workers."""
        if self._hierarchy is None:
            return self._participation.asked(workers)
        return self._hierarchy.rounds * sum(map(self._participation.asked, self._hierarchy.sizes(workers)))

    def batches_per_round(self, workers: int) -> int:
        """Return the number of batches of all workers that are asked."""
        return self._asked(workers) * self._local_steps

    def samples_per_round(self, workers: int, batch_size: int, train_size: int) -> int:
        """Return the number of samples of a round; an estimate with ``local_epochs``."""
        if self._local_epochs is None:
            return super().samples_per_round(workers, batch_size, train_size)
        return max(round(self._local_epochs * train_size * self._asked(workers) / workers), 1)
