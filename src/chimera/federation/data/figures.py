"""What an answer of a node to a driver says about the node's rows, for its policy."""

from __future__ import annotations

from typing import Any, NamedTuple

from chimera.training.nodes_data.description import DataDescription
from chimera.training.nodes_data.evaluation import Measured


class Figures(NamedTuple):
    """The figures in an answer.

    Attributes
    ----------
    rows : number of rows that they are computed from; 0 if there are none.
    metrics : names of the metrics.
    statistics : whether they include statistics of columns.
    """

    rows: int = 0
    metrics: tuple[str, ...] = ()
    statistics: bool = False


def figures_in(answer: Any) -> Figures:
    """Return the figures in the value that an actor of `node_actors` returned."""
    if isinstance(answer, Measured):
        return Figures(answer.rows, tuple(answer.sums))
    if isinstance(answer, DataDescription) and answer.statistics is not None:
        return Figures(answer.statistics.rows, statistics=True)
    return Figures()
