"""A worker of a training run that lives in a node: the driver's strategy, with the node's own model and data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.registry import registered_names_only
from chimera.data.dataset import Dataset
from chimera.data.order import OwnOrder, ShardOrder
from chimera.nodes.table import match_columns
from chimera.nodes.workers.training_data import Data
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.worker.driver_schema import DriverSchema
from chimera.training.worker.learner import Learner

if TYPE_CHECKING:
    from chimera.nodes.workers.gradient_worker import GradientWorker, Problem

KIND, PRIVATE_KIND = (f"{kind.__module__}.{kind.__qualname__}" for kind in (Learner, PrivateWorker))
"""What drivers ask for, without and with privacy."""


class NodeLearner(Learner):
    """What a driver gets that asks a node for a `Learner`.

    Parameters
    ----------
    node : whose model and data it has.
    rank : its number in the run.
    counterpart : what the driver's model and data are like.
    order : how the rows are read.
    options : those of `Learner`; they come from the driver.

    Raises
    ------
    DataError : the node's model or data do not fit the driver's.
    """

    def __init__(self, node: GradientWorker, rank: int, counterpart: Any, _: None, order: Any, **options: Any) -> None:
        if not isinstance(counterpart, DriverSchema):
            raise DataError(f"{node.name} keeps its own model and data: the driver can send it neither")
        with registered_names_only(None):  # the node's owner may name a model or loss by path; no driver may
            data = node.read()
            problem = _problem(node, counterpart, data)
        counterpart.check(problem.model.layout, node.name)
        dataset = Dataset(problem.inputs, problem.targets, counterpart.classes, name=node.name)
        super().__init__(rank, problem.model, dataset, _bound(order, len(dataset), rank), **options)

    def follow(self, order: Any, since: int) -> None:
        """Read the node's rows from now on as the order says."""
        super().follow(_bound(order, self.samples(), self._rank), since)


def _bound(order: Any, samples: int, rank: int) -> ShardOrder:
    if not isinstance(order, OwnOrder):
        raise DataError(f"an order for data that the driver does not have is an OwnOrder, not a {type(order).__name__}")
    return order.of(samples, rank)


def _problem(node: GradientWorker, counterpart: DriverSchema, data: Data) -> Problem:
    """Return the node's problem with columns and classes in the driver's order."""
    inputs, columns = data.X, data.columns
    if counterpart.features is not None:
        inputs, columns = inputs[:, match_columns(counterpart.features, columns)], counterpart.features
    if (counterpart.classes is None) != (node.task == "regression"):
        raise DataError(f"{node.name} is for {node.task}, and the driver's data is not")
    if counterpart.classes is None:
        return node.make_problem(Data(inputs, columns, data.y, data.y_columns), None)
    numbers = _numbered(data.y, counterpart.classes, node.name)
    return node.make_problem(Data(inputs, columns, numbers, data.y_columns), np.arange(len(counterpart.classes)))


def _numbered(labels: NDArray[Any], classes: tuple[str, ...], who: str) -> NDArray[np.int64]:
    """Return the place of each label among the classes; the number 1, "1" and 1.0 are the same label."""
    own, inverse = np.unique(labels, return_inverse=True)
    places = {label: place for place, label in enumerate(classes)}
    names = [f"{label:g}" if isinstance(label, float) else str(label) for label in own.tolist()]
    if unknown := [name for name in names if name not in places]:
        raise DataError(f"{who} has rows of class {unknown[0]!r}; the driver's classes are {', '.join(classes[:10])}")
    return np.array([places[name] for name in names], np.int64)[inverse]
