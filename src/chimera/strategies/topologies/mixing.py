"""Mixing weights: the share of each neighbour's parameters that a worker takes in a round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

Row: TypeAlias = tuple[tuple[int, float], ...]
"""Places and weights of one worker: its own first, then its neighbours' in order."""
_CLOSE = 1e-6


@dataclass(frozen=True)
class Mixing:
    """A doubly stochastic matrix W by rows. Worker i takes ``sum_j W_ij x_j``, which keeps the mean of all copies.

    Attributes
    ----------
    rows : one row for each place.
    """

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, weights: Sequence[dict[int, float]]) -> Mixing:
        """Create the matrix from the weights of each place's neighbours. A missing own weight is 1 minus the others.

        Raises
        ------
        ConfigurationError : the matrix is not doubly stochastic.
        """
        columns = [0.0] * len(weights)
        rows = []
        for place, given in enumerate(weights):
            others = {j: given[j] for j in sorted(given) if j != place and given[j] != 0}
            row = ((place, given.get(place, 1.0 - sum(others.values()))), *others.items())
            for j, weight in row:
                columns[j] += weight
            within = min(weight for _, weight in row) >= -_CLOSE and abs(sum(weight for _, weight in row) - 1) <= _CLOSE
            if not within:  # False for NaN, too
                raise ConfigurationError(f"the weights of place {place} must be at least 0 and sum to 1: {dict(row)}")
            rows.append(row)
        for place, total in enumerate(columns):
            if abs(total - 1) > _CLOSE:
                raise ConfigurationError(f"the weights that others give place {place} sum to {total:g}, not to 1")
        return cls(tuple(rows))

    @cached_property
    def neighbours(self) -> list[NDArray[np.intp]]:
        """The places of each worker's neighbours, in order."""
        return [np.array([j for j, _ in row[1:]], np.intp) for row in self.rows]

    def matrix(self) -> NDArray[np.float64]:
        """Return W, shape (n, n)."""
        dense = np.zeros((len(self.rows), len(self.rows)))
        for place, row in enumerate(self.rows):
            for j, weight in row:
                dense[place, j] = weight
        return dense


def metropolis(size: int, edges: Iterable[tuple[int, int]]) -> Mixing:
    """Return the Metropolis-Hastings weights of an undirected graph: W_ij = 1 / (1 + max(d_i, d_j)) (Xiao and Boyd 2004)."""
    neighbours: list[set[int]] = [set() for _ in range(size)]
    for i, j in edges:
        if i != j:
            neighbours[i].add(j)
            neighbours[j].add(i)
    degrees = [len(each) for each in neighbours]
    return Mixing.of([{j: 1 / (1 + max(degrees[i], degrees[j])) for j in each} for i, each in enumerate(neighbours)])


def circulant(size: int, hops: Sequence[int]) -> Mixing:
    """Return equal weights for each worker and for the workers ``hops`` places before it; doubly stochastic, and directed."""
    weight = 1 / (1 + len(hops))
    return Mixing.of([{(i - hop) % size: weight for hop in hops} for i in range(size)])


def connected(mixings: Sequence[Mixing]) -> bool:
    """Return whether values from every place reach every other place, if these mixings are used in turn forever.

    One direction suffices: if the graph of a doubly stochastic matrix is connected, it is strongly connected.
    """
    size, heard_of, new = len(mixings[0].rows), {0}, [0]
    while new and len(heard_of) < size:
        place = new.pop()
        found = {j for mixing in mixings for j, weight in mixing.rows[place] if weight > 0} - heard_of
        heard_of |= found
        new += found
    return len(heard_of) == size


def gap_of(matrix: NDArray[Any]) -> float:
    """Return the spectral gap 1 - |lambda_2| of a doubly stochastic matrix: the asymptotic decay of disagreement in a round."""
    if len(matrix) == 1:
        return 1.0
    rest = matrix - 1 / len(matrix)  # without the eigenvalue 1 of the mean
    values = np.linalg.eigvalsh(rest) if np.allclose(rest, rest.T) else np.linalg.eigvals(rest)
    return float(max(0.0, 1 - np.abs(values).max()))
