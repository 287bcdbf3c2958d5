"""The reading order of a worker whose rows the driver does not have."""

from __future__ import annotations

from typing import Any

from chimera.core.errors import DataError
from chimera.data.order import OwnOrder, ShardOrder
from chimera.data.row_labels import class_labels


def bound_order(order: Any, dataset: Any, rank: int) -> ShardOrder:
    """Return the order of a driver for the rows of a node's data set.

    Raises
    ------
    DataError : the driver sent something else.
    """
    if not isinstance(order, OwnOrder):
        raise DataError(f"the reading order of a node's own data must be an OwnOrder, not a {type(order).__name__}")
    return order.of(len(dataset), rank, class_labels(dataset.known_labels))
