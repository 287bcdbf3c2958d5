"""The actors of a node with its own data: they describe the data, and train and evaluate for drivers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.message import Encoded
from chimera.core.registry import registered_names_only
from chimera.data.indicators import check_default_loss
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.own_data import OwnData
from chimera.models.conversion import build_model
from chimera.models.instantiation import parameter_limit
from chimera.models.model import MODELS, Model
from chimera.training.messages.tally import Tally
from chimera.training.nodes_data.description import DataDescriber, DataDescription
from chimera.training.nodes_data.evaluation import Measured, check_metrics, of_one_node
from chimera.training.nodes_data.model_table import FOLDER, check_model_table
from chimera.training.plugin import named
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.worker.driver_schema import DriverSchema, NodeRequest
from chimera.training.worker.learner import Learner
from chimera.training.worker.own_order import bound_order

Actors = Mapping[str, Callable[..., Any]]


def node_actors(data: OwnData, disclosure: Disclosure) -> Actors:
    """Return the classes that drivers may use at a node, by their names in the driver, for `chimera.engines.http.hosting`."""
    learner = partial(OwnDataLearner, data, disclosure)
    private = partial(PrivateWorker, learner=learner)
    makers: dict[type, Callable[..., Any]] = {
        DataDescriber: partial(NodeDescriber, data, disclosure),
        Learner: learner,
        PrivateWorker: private,
    }
    return {f"{kind.__module__}.{kind.__qualname__}": maker for kind, maker in makers.items()}


class NodeDescriber(DataDescriber):
    """Describes the data of a node, as far as its owner allows it."""

    def __init__(self, data: OwnData, disclosure: Disclosure) -> None:
        self._data, self._disclosure = data, disclosure

    def describe(self) -> DataDescription:
        """Return the description."""
        data, disclosure = self._data, self._disclosure
        training = int((~data.test).sum())
        enough = training >= disclosure.min_rows
        return DataDescription(
            data.node,
            data.task,
            data.columns,
            data.input_shape,
            outputs=data.outputs,
            classes=data.shown,
            rows=training if disclosure.rows and enough else None,
            statistics=data.statistics if disclosure.statistics and enough else None,
            metrics=disclosure.metrics if int(data.test.sum()) >= disclosure.min_rows else "none",
        )


class OwnDataLearner(Learner):
    """The learner of a node that makes the model of a run from its name, and has training and test rows.

    Parameters
    ----------
    data, disclosure : the node's data, and the figures that it gives.
    rank : rank in the run.
    schema : schema of the run, with a request.
    order : reading order of the rows.
    options : options of `Learner`, from the driver.

    Raises
    ------
    DataError : the data do not fit the schema.
    CodeRefusedError : the model is named by path, or by a file.
    """

    def __init__(
        self, data: OwnData, disclosure: Disclosure, rank: int, schema: Any, _: None, order: Any, **options: Any
    ) -> None:
        if not isinstance(schema, DriverSchema) or schema.request is None:
            raise DataError(
                f"node {data.node!r} has no model: run without data of the driver, so that it sends a model's name"
            )
        request = schema.request
        data.check(request, schema.classes)
        has_default_loss: list[bool] = []
        model = _model(request, schema, disclosure, options.get("seed", 0), partial(has_default_loss.append, True))
        schema.check(model, f"node {data.node!r}")
        check_metrics(model, request.averaged)
        train, self._test = data.parts(schema, request)  # after the cheap checks: it copies all rows
        if has_default_loss:
            check_default_loss(train, min_columns=2)  # one column of one node does not show that the values are classes
        self._disclosure, self._node, self._nominal = disclosure, data.node, request.rows_per_node
        self._averaged = request.averaged
        super().__init__(rank, model, train, bound_order(order, train, rank), **options)

    def follow(self, order: Any, since: int) -> None:
        """Read the node's rows in this order from now on."""
        super().follow(bound_order(order, self._dataset, self._rank), since)

    def measure(self, *weights: Encoded) -> Measured:
        """Return the sums of loss and metrics of these weights over the node's test rows, if its owner gives them."""
        metrics, test = self._disclosure.metrics, self._test
        if metrics == "none" or test is None or len(test) < self._disclosure.min_rows:
            return Measured(self._node, 0, {})
        model: Any = self._model  # `check_metrics` has checked that it has sums
        with self._evaluated(weights):
            sums = model.sums_of(test.whole())
        named = self._disclosure.named
        given = {name: values for name, values in sums.packed(self._averaged).items() if named is None or name in named}
        return Measured(self._node, len(test), given, metrics == "own")

    def evaluate(self, *weights: Encoded) -> dict[str, float]:
        """Return the node's own figures on its test rows, if its owner gives them; else none."""
        measured = self.measure(*weights)
        return of_one_node(self._model, measured.sums, self._averaged) if measured.own else {}

    def samples(self) -> int:
        """Return the number of training rows, or the number that the driver assumes if the node does not give its own."""
        disclosure = self._disclosure.rows and len(self._dataset) >= self._disclosure.min_rows
        return super().samples() if disclosure or self._nominal is None else self._nominal

    def share(self) -> float:
        """Return the number of rows as `samples` does."""
        return float(self.samples())

    def tally(self) -> Tally:
        """Return losses and messages since the last call; no losses if the node gives no metrics."""
        done = super().tally()
        if self._disclosure.metrics == "none":
            done.loss, done.losses = 0.0, 0
        return done


def _model(
    request: NodeRequest,
    schema: DriverSchema,
    disclosure: Disclosure,
    seed: Any,
    check_default_loss: Callable[[], None],
) -> Model:
    """Make the model of a request: by its registered name, or from a folder of this node.

    ``check_default_loss`` is as in `chimera.models.conversion.as_model`.

    Raises
    ------
    CodeRefusedError : the request names code, a file or an address.
    ConfigurationError : the node has no such folder, or the model is too large.
    """
    check_model_table(request.model)
    name, options = named(request.model)
    about: dict[str, Any] = {
        "input_shape": request.input_shape, "outputs": request.outputs, "task": request.task, "seed": int(seed),
        "check_default_loss": check_default_loss,
    }  # fmt: skip
    if name == FOLDER:
        if (path := disclosure.models.get(options[FOLDER])) is None:
            known = ", ".join(sorted(disclosure.models)) or "none"
            raise ConfigurationError(
                f"this node has no model {options[FOLDER]!r} in its table [models]; it has: {known}"
            )
        with registered_names_only(None):  # the owner of the node has put it there
            return build_model(name, {**options, "path": str(path)}, **about)
    size = sum(map(math.prod, schema.shapes))
    if size > disclosure.max_parameters:
        raise ConfigurationError(
            f"the model has {size} parameters, but this node builds models of up to {disclosure.max_parameters}"
        )
    if (library := MODELS.find(name).requires) is not None:
        importlib.import_module(library)  # parameters are counted only once it is imported
    with parameter_limit(size, "the driver's"):
        return build_model(name, options, **about)
