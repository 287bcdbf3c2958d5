"""The torus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from chimera.strategies.topologies.mixing import Mixing, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology


@TOPOLOGIES.register("torus")
class Torus(Topology):
    """A grid with joined sides, as square as the number of living workers allows; a ring if that number is prime."""

    def mixing(self, ranks: Sequence[int], round_: int) -> Mixing:  # noqa: ARG002 - always the same
        """Return 1/5 for each worker itself and its four neighbours; larger weights if some of these are the same worker."""
        return metropolis(len(ranks), _edges(len(ranks)))


def _edges(size: int) -> Iterator[tuple[int, int]]:
    rows = next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
    columns = size // rows
    for place in range(size):
        row, column = divmod(place, columns)
        yield place, row * columns + (column + 1) % columns
        yield place, (row + 1) % rows * columns + column
