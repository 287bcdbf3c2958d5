"""Evaluation of the global model on rows that nodes keep: sums of each node, merged by the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ConfigurationError, DataError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.models.sums import MEAN, PackedSums
from chimera.training.messages.wire_types import register_wire_type
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.nodes_data.description import MAX_ROWS


@dataclass(frozen=True)
class Measured:
    """The evaluation of a model on a node's test rows.

    Attributes
    ----------
    node : name of the node.
    rows : number of rows; 0 if the node gives no metrics.
    sums : sums of the loss and of each metric, see `chimera.models.sums`.
    own : whether the node's own figures may be shown, and not only those of all nodes.
    """

    node: str
    rows: int
    sums: dict[str, tuple[float, ...]]
    own: bool = False


class NodesEvaluation:
    """Evaluates the global model on the nodes' test rows. Nodes that declared to give no metrics are not asked.

    Parameters
    ----------
    engine : the engine on which the workers run.
    model : the driver's model, which merges the sums.
    data : the schema on which the nodes agreed.

    Raises
    ------
    ConfigurationError : a metric of the model cannot be computed from sums.
    """

    def __init__(self, engine: Engine, model: Any, data: AgreedData) -> None:
        check_metrics(model, data.averaged)
        self._engine, self._model, self._averaged = engine, model, data.averaged
        self._silent = {
            f"worker {rank}" for rank, one in zip(data.ranks, data.descriptions, strict=True) if one.metrics == "none"
        }

    def evaluate(self, workers: Sequence[Any], shared: Flat, get: Any) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the metrics over the test rows of all workers' nodes, and those of each node that gives its own.

        Without any test rows, there are no metrics.

        Parameters
        ----------
        workers : the workers.
        shared : the parameters that workers share.
        get : returns the values of refs.

        Raises
        ------
        ActorLost : a worker's answer is invalid. The worker was killed.
        """
        asked = [worker for worker in workers if worker.name not in self._silent]
        weights = self._engine.put(Encoded("identity", shared.size, (shared,)))
        found = get([worker.measure(weights) for worker in asked])
        parts, own = [], {}
        for worker, measured in zip(asked, found, strict=True):
            try:
                figures = self._checked(measured)
            except DataError as error:
                self._engine.kill(worker)
                raise ActorLost(f"{worker.name} was lost: it reported an invalid evaluation: {error}") from error
            if figures is not None:
                parts.append(measured.sums)
                if measured.own:
                    own[measured.node] = figures
        return (self._model.merged(parts, self._averaged) if parts else {}), own

    def _checked(self, measured: Any) -> dict[str, float] | None:
        """Return the figures of one node; None if the node gives no figures."""
        if not isinstance(measured, Measured) or not 0 <= measured.rows < MAX_ROWS or len(measured.node) > 200:
            raise DataError("it has another form")
        return of_one_node(self._model, measured.sums, self._averaged) if measured.rows else None


def of_one_node(model: Any, sums: PackedSums, averaged: Sequence[str]) -> dict[str, float]:
    """Return the figures of one node; without metrics that its rows do not define."""
    return {name.removesuffix(MEAN): value for name, value in model.merged([sums], averaged).items()}


def check_metrics(model: Any, averaged: Sequence[str]) -> None:
    """Raise ConfigurationError if the metrics of a model are not all from sums of nodes, or, if in ``averaged``, means."""
    if not hasattr(model, "new_sums"):
        raise ConfigurationError(
            f"{type(model).__name__} cannot be evaluated on the rows of nodes: it has no sums of metrics"
        )
    sums = model.new_sums()
    if known := [name for name in averaged if name not in sums.unmerged()]:
        reason = (
            "follows from sums and is measured over all rows"
            if known[0] in sums.metrics
            else "is no metric of the model"
        )
        raise ConfigurationError(f"data 'nodes', option 'mean_of_nodes': {known[0]!r} {reason}")
    if unmerged := [name for name in sums.unmerged() if name not in averaged]:
        raise ConfigurationError(
            f"the metric {unmerged[0]!r} needs the outputs of all rows at one place, but each node keeps its rows: use metrics "
            "that follow from sums, such as accuracy, f1, mse, mae, rmse, r2 or perplexity, or measure the mean over nodes, "
            f"[data] mean_of_nodes = [{unmerged[0]!r}]"
        )


register_wire_type(Measured, "measured")
