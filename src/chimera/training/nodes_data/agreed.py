"""The data of a run whose rows the nodes have: its schema and descriptions, without rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chimera.core.counted import counted
from chimera.data.scaling import Scaling
from chimera.engines.http.failure import plain_text
from chimera.models.model import Task
from chimera.training.nodes_data.description import Column, DataDescription
from chimera.training.worker.driver_schema import NodeRequest, Scaled

SCALED = {
    "none": "no scaling",
    "declared": "declared constants",
    "statistics": "statistics of the training rows of all nodes",
    "each": "each node's own training rows",
}
_MAX_NAMES = 5


@dataclass(frozen=True)
class AgreedData:
    """The data of a run whose rows the nodes have: its schema and descriptions, without rows.

    Attributes
    ----------
    descriptions : description from each node that was connected at the start, in rank order.
    ranks : the ranks of the workers at these nodes.
    columns : the columns in the order of the model's inputs, by name; None if the data is not a table.
    input_shape, input_type, outputs, task, classes, features, input_scaling : see `chimera.data.dataset.Dataset`.
    scaled : source of the scaling of the columns, see `NodeRequest`.
    averaged : metrics of which the run measures the mean over the nodes.
    rows_per_node : assumed number of training rows of a node that does not report it.
    model : name and options of the model that nodes make.
    """

    immutable: ClassVar[bool] = True
    target_scaling: ClassVar[None] = None
    name: ClassVar[str] = "nodes"
    grouping: ClassVar[None] = None

    descriptions: tuple[DataDescription, ...]
    ranks: tuple[int, ...]
    columns: tuple[Column, ...] | None
    input_shape: tuple[int, ...]
    input_type: Literal["float32", "int64"]
    outputs: int
    task: Task
    classes: tuple[str, ...] | None
    scaled: Scaled
    input_scaling: Scaling | None
    rows_per_node: int | None
    averaged: tuple[str, ...]
    model: dict[str, Any]

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the inputs; None if the data is not a table."""
        return None if self.columns is None else tuple(name for column in self.columns for name in column.features)

    @property
    def request(self) -> NodeRequest:
        """The request for the model and data that nodes make."""
        scaling = self.input_scaling
        given = {} if scaling is None else {"mean": scaling.mean.tolist(), "deviation": scaling.deviation.tolist()}
        return NodeRequest(
            self.model, self.task, self.outputs, self.input_shape, self.columns, self.scaled, **given,
            rows_per_node=self.rows_per_node, averaged=self.averaged,
        )  # fmt: skip

    @property
    def line(self) -> str:
        """One line on the data, such as ``data: 3 nodes · 455 training rows · 9 columns · 2 classes: no, yes · no scaling``."""
        given = [one.rows for one in self.descriptions if one.rows is not None]
        hidden = len(self.descriptions) - len(given)
        parts = [counted(len(self.descriptions), "node")]
        parts += (
            [f"{counted(sum(given), 'training row')}{f', without those of {hidden}' if hidden else ''}"]
            if given
            else []
        )
        shape = " x ".join(map(str, self.input_shape))
        parts.append(f"inputs {shape}" if self.columns is None else counted(len(self.columns), "column"))
        listed = ", ".join((self.classes or ())[:_MAX_NAMES]) + (
            ", ..." if len(self.classes or ()) > _MAX_NAMES else ""
        )
        parts.append(
            f"{counted(self.outputs, 'value')} to predict"
            if self.classes is None
            else f"{counted(len(self.classes), 'class', 'classes')}: {listed}"
        )
        parts += (
            []
            if self.columns is None
            else ["no scaling" if self.scaled == "none" else f"scaled by {SCALED[self.scaled]}"]
        )
        return plain_text(f"data: {' · '.join(parts)}")

    def shown(self, *, rows: bool) -> dict[str, Any]:
        """Return the content of ``data.json``: schema, scaling, and metrics of each node; with ``rows`` also its row count."""
        nodes = [
            {"node": one.node, "rows": one.rows if rows else None, "metrics": one.metrics} for one in self.descriptions
        ]
        columns = [{"name": column.name, "categories": column.categories} for column in self.columns or ()]
        return {
            "nodes": nodes,
            "columns": columns,
            "input_shape": self.input_shape,
            "classes": self.classes,
            "scaled_by": SCALED[self.scaled],
        }
