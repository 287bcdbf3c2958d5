"""Split learning (Gupta and Raskar 2018, "Distributed learning of deep neural network over multiple agents")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.parts import Halves
from chimera.strategies.strategy import STRATEGIES, Cluster, Round, Strategy


@STRATEGIES.register("split-learning")
class SplitLearning(Strategy):
    """Clients have the first layers, the server the rest (Gupta and Raskar 2018; Vepakomma et al. 2018).

    The activations of a client's batch go to the server, their gradient comes back, and both step their halves. Clients take
    turns, and hand their half on to the next; so the weights are those of the whole network trained on one worker with the
    same batches, and no row of data leaves its client.

    Parameters
    ----------
    cut : before which layer, from 1, the network is cut.
    head : from which layer on the layers are the clients' again, with the loss: labels stay with them then (the u-shaped
        configuration of Vepakomma et al. 2018). By default labels go to the server with the activations.
    local_steps : how many batches a client computes before it hands its half on.
    """

    family = "model-parallel"
    sends = "nothing"
    replicas = "parts"

    def __init__(self, *, cut: int = 2, head: int | None = None, local_steps: int = 1) -> None:
        if local_steps < 1:
            raise ConfigurationError(f"local_steps must be at least 1, not {local_steps}")
        if not 1 <= cut < (cut + 1 if head is None else head):
            raise ConfigurationError(f"cut is at least 1, and head comes after it; not {cut} and {head}")
        self._halves, self._local_steps = Halves(cut, head), local_steps

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
        """Return whose turn a round is."""
        return cluster.workers[round_ // self._local_steps % len(cluster.workers)]

    def parts(self, workers: int) -> Halves:  # noqa: ARG002 - whatever their number
        """Return how the model is cut."""
        return self._halves

    def holders(self, cluster: Cluster) -> Sequence[Sequence[Any]]:
        """Return who had the last turn, and the server."""
        return [self._client(cluster, cluster.round - 1)], cluster.shards

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - one at a time
        """Return one."""
        return 1
