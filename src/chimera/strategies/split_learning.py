"""Split learning (Gupta and Raskar 2018, "Distributed learning of deep neural network over multiple agents")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.model_partition import SplitPartition
from chimera.strategies.strategy import STRATEGIES, Round, Strategy


@STRATEGIES.register("split-learning")
class SplitLearning(Strategy):
    """Clients hold the first layers, the server the others (Gupta and Raskar 2018; Vepakomma et al. 2018).

    A client sends the activations of a batch to the server, and receives their gradient; both step their parts. Clients take
    turns, and each sends its part to the next. The weights therefore equal those of training the whole network on one worker
    with the same batches. No row of data leaves its client.

    Parameters
    ----------
    cut : number of the layer, from 1, before which the network is cut; default 2.
    head : number of the first later layer that is on the clients again. All layers after it and the loss are there, too. Labels
        then stay on the clients (the u-shaped configuration of Vepakomma et al. 2018). Default: none, and labels go to the
        server with the activations.
    local_steps : number of batches that a client computes before the next client's turn; default 1.
    """

    family = "model-parallel"
    sends = "nothing"
    replicas = "parts"

    def __init__(self, *, cut: int = 2, head: int | None = None, local_steps: int = 1) -> None:
        if local_steps < 1:
            raise ConfigurationError(f"local_steps must be at least 1, not {local_steps}")
        if not 1 <= cut < (cut + 1 if head is None else head):
            raise ConfigurationError(f"cut is at least 1, and head comes after it; not {cut} and {head}")
        self._halves, self._local_steps = SplitPartition(cut, head), local_steps

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one batch of one client a round."""
        (server,) = cluster.servers(1)
        step = self._with_labels_sent if self._halves.head is None else self._with_labels_kept
        for round_ in itertools.count(cluster.round):
            client, before = self._client(cluster, round_), self._client(cluster, round_ - 1)
            if round_ and client is not before:
                client.take_over(before.hand_on())
            yield Round(step(client, server))

    def _with_labels_sent(self, client: Any, server: Any) -> list[Any]:
        gradient, loss, applied = server.train(*client.forward(returns=2), returns=3)
        return [client.update(gradient, loss), applied]

    def _with_labels_kept(self, client: Any, server: Any) -> list[Any]:
        activations, _ = client.forward(returns=2)
        gradient, applied = server.update(client.loss(server.forward(activations)), returns=2)
        return [client.update(gradient), applied]

    def _client(self, cluster: Cluster, round_: int) -> Any:
        """Return the client whose turn it is in a round."""
        return cluster.workers[round_ // self._local_steps % len(cluster.workers)]

    def parts(self, workers: int) -> SplitPartition:  # noqa: ARG002 - whatever their number
        """Return how the model is cut."""
        return self._halves

    def holders(self, cluster: Cluster) -> Sequence[Sequence[Any]]:
        """Return the client of the last turn, and the server."""
        return [self._client(cluster, cluster.round - 1)], cluster.shards

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - one at a time
        """Return one."""
        return 1
