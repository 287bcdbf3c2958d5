"""FedAvg (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.strategies.strategy import STRATEGIES, Cluster, Round, Strategy


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
    local_optimizer : what it steps with: any of torch.optim, by name or as a table with its options and a ``schedule``.
    local_learning_rate : of that, unless the table says; by default 0.1 for ``sgd``, and torch's default for others.
    scaled : whether the local learning rate is multiplied by the number of workers: their mean takes so much shorter steps
        (the linear scaling rule of Goyal et al. 2017, "Accurate, Large Minibatch SGD").
    keep_state : whether the local optimizer goes on with its momenta in the next round, which then are part of checkpoints;
        if not, it begins each round anew.
    fraction : the share of the workers that take part in a round, at least one; who they are, ``seed`` and the round decide.
    weighted : whether a worker counts by how many samples it has, as in the paper, or all count alike.
    send : what a worker sends: its ``change``, which codecs pack well and rows can be told by; or the ``weights`` that it
        reached, as in the paper, whose mean is exact: rounding a difference costs bits.
    averaging : of changes, where each worker changes few rows of a table: the mean of ``all``; for each row, of those that
        ``touched`` it; or their ``sum``.
    shards : over how many servers the parameters are spread.
    seed : of the choice of workers.
    """

    family = "federated"
    sgd_learning_rate = 1.0

    def __init__(
        self,
        *,
        local_steps: int = 10,
        local_optimizer: str | Mapping[str, Any] = "sgd",
        local_learning_rate: float | None = None,
        scaled: bool = False,
        keep_state: bool = True,
        fraction: float = 1.0,
        weighted: bool = False,
        send: Literal["change", "weights"] = "change",
        averaging: Literal["all", "touched", "sum"] = "all",
        shards: int = 1,
        seed: int = 0,
    ) -> None:
        for key, value in (("local_steps", local_steps), ("shards", shards)):
            if value < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {value}")
        if not 0 < fraction <= 1:
            raise ConfigurationError(f"fraction is a share of the workers, above 0 and at most 1, not {fraction}")
        if seed < 0:
            raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")
        if send not in ("change", "weights") or averaging not in ("all", "touched", "sum"):
            raise ConfigurationError(
                f"send is 'change' or 'weights', averaging 'all', 'touched' or 'sum'; not {send!r} and {averaging!r}"
            )
        if send == "weights" and averaging != "all":
            raise ConfigurationError(
                f"averaging {averaging!r} is for changes: workers that send weights touch all rows"
            )
        self.local_optimizer = _table(local_optimizer, local_learning_rate)
        self._local_steps, self._keep_state = local_steps, keep_state
        self._fraction, self._weighted, self._shards, self._seed = fraction, weighted, shards, seed
        if scaled and "lr" not in self.local_optimizer:
            raise ConfigurationError("scaled multiplies the local learning rate: say which, by local_learning_rate")
        self._scaled = scaled
        self._reached, self._averaging = send == "weights", averaging

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""
        servers = cluster.servers(self._shards)
        weights = [server.weights() for server in servers]
        samples = self._samples(cluster)
        round_ = cluster.round
        while True:
            chosen = self._chosen(cluster.workers, round_)
            total = sum(samples[worker.name] for worker in chosen)
            results = [
                worker.delta(
                    *cluster.addressed(worker, weights, self._local_steps),
                    steps=self._local_steps,
                    first=round_ * self._local_steps,
                    keep_state=self._keep_state,
                    weight=samples[worker.name] * len(chosen) / total,  # so that the plain mean is the weighted one
                    reached=self._reached,
                    returns=self._shards,
                )
                for worker in chosen
            ]
            updates = [
                server.update(*piece, averaging=self._averaging, reached=self._reached, returns=2)
                for server, piece in zip(servers, zip(*results, strict=True), strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round(done)
            round_ += 1

    def local_optimizer_of(self, workers: int) -> Mapping[str, Any]:
        """Return the table of the local optimizer."""
        table = dict(self.local_optimizer or {})
        return {**table, "lr": table["lr"] * self._taking_part(workers)} if self._scaled else table

    def steps_per_round(self) -> int:
        """Return how many batches a worker trains on in a round."""
        return self._local_steps

    def batches_per_round(self, workers: int) -> int:
        """Return how many batches all that take part train on."""
        return self._taking_part(workers) * self._local_steps

    def _taking_part(self, workers: int) -> int:
        return max(round(self._fraction * workers), 1)

    def _chosen(self, workers: Sequence[Any], round_: int) -> list[Any]:
        """Return who takes part in a round, in rank order."""
        count = self._taking_part(len(workers))
        if count == len(workers):
            return list(workers)
        places = np.random.default_rng([self._seed, round_]).choice(len(workers), count, replace=False)
        return [workers[place] for place in sorted(places)]

    def _samples(self, cluster: Cluster) -> Mapping[str, float]:
        names = [worker.name for worker in cluster.workers]
        if not self._weighted:
            return dict.fromkeys(names, 1)
        return dict(zip(names, cluster.get([worker.share() for worker in cluster.workers]), strict=True))


def _table(optimizer: str | Mapping[str, Any], learning_rate: float | None) -> dict[str, Any]:
    """Return the table of an optimizer, with a learning rate."""
    table: dict[str, Any] = {"name": optimizer} if isinstance(optimizer, str) else dict(optimizer)
    if learning_rate is not None:
        if "lr" in table:
            raise ConfigurationError("local_learning_rate and the lr of local_optimizer say the same: give one of them")
        if not learning_rate > 0:
            raise ConfigurationError(f"local_learning_rate must be above 0, not {learning_rate}")
        table["lr"] = learning_rate
    elif table.get("name") == "sgd":
        table.setdefault("lr", 0.1)
    return table
