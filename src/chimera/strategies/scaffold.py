"""SCAFFOLD (Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.participation import Work
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("scaffold")
class Scaffold(FedAvg):
    """`fed-avg` with control variates: local gradients are corrected by c - c_i for differing data (Karimireddy et al. 2020).

    c_i is the mean of the worker's gradients in the last round in which the worker participated; it stays on the worker. The
    servers hold c, the mean of all c_i. Weights and changes are sent together with float32 controls, which doubles the bytes.
    Partial results of stragglers count.

    Parameters
    ----------
    options : options of `FedAvg`.
    """

    takes_partial = True
    by_rows = False
    private = False  # workers also send controls

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self._hierarchy is not None:
            raise ConfigurationError("scaffold needs the controls of all clients at the servers: remove hierarchical")
        if not self._participation.waits_for_all:  # a late client has changed its c_i, but c lacks the change for ever
            raise ConfigurationError(
                "scaffold needs the controls of all clients that are asked: remove over_selection and deadline_s"
            )
        self._rule = {"name": "control-variates"}
        self._controls: Sequence[Any] = ()  # c, by server
        self._workers = 1

    def _survey(self, cluster: Cluster) -> None:
        super()._survey(cluster)
        self._workers = len(cluster.workers)
        self._controls = [server.enclose() for server in cluster.shards]

    def _ask(self, work: Work, weights: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        return super()._ask(work, [*weights, *self._controls], options)

    def _step(
        self, servers: Sequence[Any], plan: Sequence[Work], answers: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        shards = len(servers)
        pieces = zip(*(answer[shards:] for answer in answers.values()), strict=True)
        self._controls = [
            server.enclose(*piece, workers=self._workers) for server, piece in zip(servers, pieces, strict=True)
        ]
        return super()._step(servers, plan, {name: answer[:shards] for name, answer in answers.items()})
