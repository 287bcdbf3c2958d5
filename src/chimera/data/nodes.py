"""The data set ``nodes``: rows that nodes have and the driver does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.data.split import DATASETS

ScalingSource: TypeAlias = Literal["auto", "statistics", "each"] | bool
"""Where the scaling of columns comes from, see `nodes`."""


@dataclass(frozen=True)
class NodesData:
    """What the driver declares about rows that it does not have; the fields are options of `nodes`."""

    classes: tuple[str, ...] | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    standardize: ScalingSource = "auto"
    scaling: Mapping[str, tuple[float, float]] | None = None
    rows_per_node: int | None = None
    mean_of_nodes: tuple[str, ...] = ()


@DATASETS.register("nodes")
def nodes(
    *,
    classes: tuple[str, ...] | None = None,
    categories: dict[str, tuple[str, ...]] | None = None,
    standardize: ScalingSource = "auto",
    scaling: dict[str, tuple[float, float]] | None = None,
    rows_per_node: int | None = None,
    mean_of_nodes: tuple[str, ...] = (),
) -> NodesData:
    """Rows of the nodes of an engine such as ``http`` or ``federation``; the driver has none (docs/how-to/federation-data.md).

    Parameters
    ----------
    classes : all labels in the order of their indices. Default: the nodes must have the same ones.
    categories : all texts of a column of texts, by name of the column. Default: the nodes must have the same ones.
    standardize : ``"statistics"``: columns of numbers get mean 0 and deviation 1 by the merged statistics of all nodes;
        ``"each"``: by those of each node's own training rows; ``"auto"``: by merged statistics if all nodes give them, else by
        each node's own; ``false``: columns are unchanged.
    scaling : mean and deviation of columns by name, instead of ``standardize``. Other columns are unchanged.
    rows_per_node : number of training rows to assume of a node that does not give its number.
    mean_of_nodes : metrics that do not follow from sums over rows, such as ``auroc``. The run measures their mean over
        the nodes, weighted by test rows, as ``auroc_mean_of_nodes``. This mean is not the metric of all rows.
    """
    if classes is not None and (len(set(classes)) != len(classes) or len(classes) < 2):
        raise ConfigurationError("data 'nodes', option 'classes': give at least two different labels")
    if standardize is True:
        standardize = "auto"
    if scaling is not None and standardize != "auto":
        raise ConfigurationError("data 'nodes' has both 'scaling' and 'standardize': give one")
    for name, (mean, deviation) in (scaling or {}).items():
        if not (np.isfinite(mean) and np.isfinite(deviation) and deviation > 0):
            raise ConfigurationError(
                f"data 'nodes', option 'scaling': {name} = [{mean}, {deviation}] is not a mean and a deviation above 0"
            )
    if rows_per_node is not None and rows_per_node < 1:
        raise ConfigurationError(f"data 'nodes', option 'rows_per_node': must be at least 1, not {rows_per_node}")
    return NodesData(classes, categories or {}, standardize, scaling, rows_per_node, mean_of_nodes)
