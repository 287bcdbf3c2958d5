"""A worker of a training run in a node: it follows the driver's strategy with the node's own model and data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.registry import registered_names_only
from chimera.data.dataset import Dataset
from chimera.nodes.table import match_columns
from chimera.nodes.workers.training_data import Data
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.worker.driver_schema import DriverSchema
from chimera.training.worker.learner import Learner
from chimera.training.worker.own_order import bound_order

if TYPE_CHECKING:
    from chimera.nodes.workers.gradient_worker import GradientWorker
    from chimera.nodes.workers.problem import Problem

KIND, PRIVATE_KIND = (f"{kind.__module__}.{kind.__qualname__}" for kind in (Learner, PrivateWorker))
"""The classes that drivers request, without and with privacy."""


class NodeLearner(Learner):
    """The learner that a node creates when a driver requests a `Learner`.

    Parameters
    ----------
    node : the node, with its model and data.
    rank : rank in the run.
    schema : schema of the driver's model and data.
    order : reading order of the rows.
    options : options of `Learner`, from the driver.

    Raises
    ------
    DataError : the node's model or data do not match the driver's.
    """

    def __init__(self, node: GradientWorker, rank: int, schema: Any, _: None, order: Any, **options: Any) -> None:
        if not isinstance(schema, DriverSchema):
            raise DataError(f"{node.name} uses its own model and data: the driver cannot send them")
        with registered_names_only(None):  # the node's owner may give a model or loss by path; drivers may not
            try:
                problem = _problem(node, schema, node.read())
            except DataError as error:
                if str(error).startswith(f"{node.name} "):
                    raise
                raise DataError(f"{node.name}: {error}") from error  # names the node, because the driver has several
        schema.check(problem.model, node.name)
        dataset = Dataset(problem.inputs, problem.targets, schema.classes, name=node.name)
        super().__init__(rank, problem.model, dataset, bound_order(order, dataset, rank), **options)

    def follow(self, order: Any, since: int) -> None:
        """Read the node's rows in this order from now on."""
        super().follow(bound_order(order, self._dataset, self._rank), since)


def _problem(node: GradientWorker, schema: DriverSchema, data: Data) -> Problem:
    """Return the node's problem with columns and classes in the driver's order."""
    inputs, columns = data.X, data.columns
    if schema.features is not None:
        inputs, columns = inputs[:, match_columns(schema.features, columns)], schema.features
    if (schema.classes is None) != (node.task == "regression"):
        raise DataError(f"the task of {node.name} is {node.task}, but that of the driver's data is not")
    if schema.classes is None:
        return node.make_problem(Data(inputs, columns, data.y, data.y_columns), None)
    numbers = _numbered(data.y, schema.classes, node.name)
    return node.make_problem(Data(inputs, columns, numbers, data.y_columns), np.arange(len(schema.classes)))


def _numbered(labels: NDArray[Any], classes: tuple[str, ...], node_name: str) -> NDArray[np.int64]:
    """Return the index of each label in the classes. The labels 1, "1" and 1.0 are equal."""
    own, inverse = np.unique(labels, return_inverse=True)
    indices = {label: index for index, label in enumerate(classes)}
    names = [f"{label:g}" if isinstance(label, float) else str(label) for label in own.tolist()]
    if unknown := [name for name in names if name not in indices]:
        raise DataError(
            f"{node_name} has rows of class {unknown[0]!r}; the driver's classes are {', '.join(classes[:10])}"
        )
    return np.array([indices[name] for name in names], np.int64)[inverse]
