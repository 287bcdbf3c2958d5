"""Edge servers between clients and the cloud (Liu et al. 2020, "Client-Edge-Cloud Hierarchical Federated Learning").

HierFAVG, algorithm 1: every edge server takes the mean of its clients' weights after kappa_1 local steps. The cloud takes the
mean of the edges' weights after kappa_2 rounds of the edges. Messages between edges and clients cross short links; only one
message of each edge crosses the long link to the cloud, once in kappa_2 rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.validation_message import validation_message
from chimera.strategies.cluster import Cluster


class Site(NamedTuple):
    """Servers and the workers that send to them.

    Attributes
    ----------
    servers : the servers, each of which holds a slice of the parameters.
    workers : the workers, in rank order.
    weights : refs of the weights of each server, from which the workers start.
    """

    servers: Sequence[Any]
    workers: Sequence[Any]
    weights: Sequence[Any]


@dataclass(frozen=True)
class Hierarchy:
    """The option ``hierarchical`` of the FedAvg family.

    Attributes
    ----------
    edges : number of edge servers. The client of rank r sends to the edge server r modulo ``edges``.
    rounds : rounds of the edge servers in one round of the cloud (the paper's kappa_2); default 2.

    Raises
    ------
    ConfigurationError : a value is below 1.
    """

    edges: int
    rounds: int = 2

    def __post_init__(self) -> None:
        for name in ("edges", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"hierarchical: {name} must be at least 1, not {getattr(self, name)}")

    @classmethod
    def of(cls, table: Mapping[str, Any] | None) -> Hierarchy | None:
        """Return the hierarchy that a table describes; None without a table."""
        if table is None:
            return None
        unknown = table.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ConfigurationError(f"hierarchical has no option {min(unknown)!r}; its options: edges, rounds")
        try:
            return msgspec.convert(dict(table), cls)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"hierarchical: {validation_message(error, cls)}") from error

    def check(self, workers: int) -> None:
        """Raise ConfigurationError if an edge server would have no client."""
        if workers < self.edges:
            raise ConfigurationError(
                f"hierarchical has {self.edges} edges for {workers} workers, but each edge needs one: reduce edges"
            )

    def sizes(self, workers: int) -> list[int]:
        """Return the number of clients of each edge server, of ``workers`` in all."""
        return [len(range(edge, workers, self.edges)) for edge in range(self.edges)]

    def clients(self, cluster: Cluster) -> list[list[Any]]:
        """Return the living clients of each edge server, in rank order."""
        found: list[list[Any]] = [[] for _ in range(self.edges)]
        for worker, rank in zip(cluster.workers, cluster.ranks, strict=True):
            found[rank % self.edges].append(worker)
        return found
