"""Graphs that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.topologies.mixing import Mixing, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


class FixedTopology(Topology):
    """Edges between ranks, with or without weights W_ij.

    Among fewer than all workers, given weights are not doubly stochastic. Metropolis-Hastings weights then replace them.

    Parameters
    ----------
    size : number of workers of the graph.
    edges : weights by (i, j), in both directions; all None for a graph without weights.
    """

    def __init__(self, size: int, edges: Mapping[tuple[int, int], float | None]) -> None:
        weighted = [weight is not None for weight in edges.values()]
        if any(weighted) and not all(weighted):
            raise ConfigurationError("either all edges of a topology have a weight or none has")
        self._size, self._edges, self._weighted = size, edges, any(weighted)
        self._whole = self._mixing(range(size))

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return the weights of the whole graph, or of the part among ``ranks``."""
        return self._whole if list(ranks) == list(range(self._size)) else self._mixing(ranks)

    def fits(self, size: int) -> None:
        """Raise ConfigurationError unless the graph has ``size`` nodes."""
        if size != self._size:
            raise ConfigurationError(f"the topology has {self._size} nodes, and there are {size} workers")

    def _mixing(self, ranks: Sequence[int]) -> Mixing:
        places = {rank: place for place, rank in enumerate(ranks)}
        inside = {(places[i], places[j]): w for (i, j), w in self._edges.items() if i in places and j in places}
        if not self._weighted or list(ranks) != list(range(self._size)):
            return metropolis(len(ranks), inside)
        weights: list[dict[int, float]] = [{} for _ in ranks]
        for (i, j), weight in inside.items():
            weights[i][j] = weight or 0.0
        return Mixing.of(weights)


class Graph(FixedTopology):
    """Any networkx graph; its nodes, in the graph's order, are the ranks.

    The edge attribute ``weight`` gives W_ij, and a loop the weight of a worker's own copy. A directed graph must have weights.
    """

    def __init__(self, graph: Any) -> None:
        places = {node: place for place, node in enumerate(graph.nodes)}
        edges: dict[tuple[int, int], float | None] = {}
        for a, b, weight in graph.edges(data="weight"):
            edges[places[a], places[b]] = weight
            if not graph.is_directed():
                edges[places[b], places[a]] = weight
        if graph.is_directed() and None in edges.values():
            raise ConfigurationError("a directed graph needs weights on its edges that are doubly stochastic")
        super().__init__(len(places), edges)


@TOPOLOGIES.register("file")
class AdjacencyFile(FixedTopology):
    """A graph in a file: a line ``i j`` or ``i j weight`` for each edge, or a matrix with commas between its numbers.

    ``#`` starts a comment.

    Parameters
    ----------
    path : path of the file. The weights of edges are W_ij = W_ji. A line ``i i weight`` gives a worker's own weight; without
        it, the own weight is 1 minus the others. A matrix of zeros and ones is an adjacency matrix; any other matrix is W.
    """

    def __init__(self, *, path: str) -> None:
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the topology {path!r} cannot be read: {error}") from error
        bare = {number: line.partition("#")[0].strip() for number, line in enumerate(lines, 1)}
        told = {number: line for number, line in bare.items() if line}
        edges: dict[tuple[int, int], float | None] = {}
        if any("," in line for line in told.values()):
            edges = _matrix(told, path)
        else:
            for number, line in told.items():
                i, j, weight = _edge(line.split(), f"{path}, line {number}")
                edges[i, j] = edges[j, i] = weight
        if not edges:
            raise ConfigurationError(f"the topology {path!r} has no edges")
        super().__init__(max(i for i, _ in edges) + 1, edges)


def _matrix(lines: Mapping[int, str], path: str) -> dict[tuple[int, int], float | None]:
    rows: list[list[float]] = []
    for number, line in lines.items():
        try:
            rows.append([float(word) for word in line.split(",")])
        except ValueError:
            raise ConfigurationError(f"{path}, line {number}: {line!r} is no row of numbers between commas") from None
    matrix = {(i, j): value for i, row in enumerate(rows) for j, value in enumerate(row)}
    if any(len(row) != len(rows) for row in rows):
        raise ConfigurationError(f"{path}: a matrix has as many numbers in each row as it has rows, {len(rows)}")
    if not set(matrix.values()) <= {0.0, 1.0}:
        return {(i, j): value for (i, j), value in matrix.items() if value or i == j}
    edges = dict.fromkeys((place for place, value in matrix.items() if value), None)
    if any((j, i) not in edges for i, j in edges):
        raise ConfigurationError(f"{path}: the matrix is not symmetric; a directed graph needs weights")
    return edges | {(len(rows) - 1, len(rows) - 1): None}  # a loop, so that the last node counts if it has no neighbour


def _edge(words: Sequence[str], where: str) -> tuple[int, int, float | None]:
    try:
        first, second, *weights = words
        i, j, weight = int(first), int(second), [float(each) for each in weights]
    except ValueError:
        i, j, weight = -1, -1, []
    if min(i, j) < 0 or len(weight) > 1:
        raise ConfigurationError(f"{where}: {' '.join(words)!r} is not of the form 'i j' or 'i j weight'")
    return i, j, weight[0] if weight else None
