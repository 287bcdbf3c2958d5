"""Streaming DiLoCo (Douillard et al. 2025, "Streaming DiLoCo with overlapping communication")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.diloco import DiLoCo
from chimera.strategies.strategy import STRATEGIES, Round


@STRATEGIES.register("streaming-diloco")
class StreamingDiLoCo(DiLoCo):
    """`diloco` that exchanges one fragment of the parameters a round, while workers continue (Douillard et al. 2025).

    Each fragment has a server, and is exchanged once in ``local_steps``. The fragments take turns, one a round, so that the
    peak traffic is divided by their number. Workers keep their own replicas, which are part of checkpoints. A codec encodes the
    messages, in few bits as in the paper. All workers participate in each round.

    Parameters
    ----------
    fragments : number of fragments, which must divide ``local_steps``; default 5. A fragment is a sequence of tensors or rows.
    overlap : local steps that a worker takes while its fragment is in flight; default 1, at most the steps of a round.
    alpha : share of the worker's own replica that stays when new values arrive, at least 0 and below 1; default 0.5.
    local_steps, server_optimizer, aggregation : see `DiLoCo`.
    """

    by_rows = False
    replicas = "own"
    private = False
    worker_extensions = ("fragments",)

    def __init__(
        self,
        *,
        fragments: int = 5,
        overlap: int = 1,
        alpha: float = 0.5,
        local_steps: int = 50,
        server_optimizer: Any = None,
        aggregation: str | Mapping[str, Any] = "mean",
    ) -> None:
        if fragments < 1 or local_steps % fragments:
            raise ConfigurationError(f"local_steps, {local_steps}, must be a multiple of fragments, {fragments}")
        if not 0 <= overlap <= local_steps // fragments:
            raise ConfigurationError(
                f"overlap is from 0 to the local_steps / fragments = {local_steps // fragments} of a round, not {overlap}"
            )
        if not 0 <= alpha < 1:
            raise ConfigurationError(f"alpha is a share, from 0 to less than 1, not {alpha}")
        super().__init__(
            local_steps=local_steps // fragments,
            server_optimizer=server_optimizer,
            aggregation=aggregation,
            shards=fragments,
        )
        self._overlap, self._alpha = overlap, alpha

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield the step of one server a round."""
        servers = cluster.servers(self._shards)
        self._enter(cluster, servers)
        new_weights = [servers[(cluster.round - 1) % self._shards].weights()] if cluster.round else []
        for round_ in itertools.count(cluster.round):
            ahead = [worker.advance(self._overlap) for worker in cluster.workers] if self._overlap else []
            changes = [self._stream(cluster, worker, new_weights, round_) for worker in cluster.workers]
            server = servers[round_ % self._shards]
            weights, done = server.update(*changes, aggregation=self._aggregation, returns=2)
            new_weights = [weights]
            yield Round([done, *ahead])

    def _stream(self, cluster: Cluster, worker: Any, new_weights: Sequence[Any], round_: int) -> Any:
        """Make a worker merge the last fragment and train; return the ref of its change of this round's fragment."""
        last, sends = (round_ - 1) % self._shards, round_ % self._shards
        due = cluster.addressed(worker, new_weights, shard=last) if new_weights else []
        steps = self._local_steps - self._overlap
        return worker.stream(*due, of=last, sends=sends, steps=steps, alpha=self._alpha)

    def _enter(self, cluster: Cluster, servers: Sequence[Any]) -> None:
        """Give the servers' weights to workers that have no replica, or a replica from another round."""
        step = cluster.round * self._local_steps
        next_steps = cluster.get([worker.stands_at() for worker in cluster.workers])
        if outdated := [w for w, at in zip(cluster.workers, next_steps, strict=True) if at != step]:
            weights = [server.weights() for server in servers]
            for worker in outdated:
                worker.enter(*cluster.addressed(worker, weights), step=step)
