"""The schema that a driver sends to workers with their own model and data, and that both must fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from chimera.core.errors import DataError
from chimera.data.dataset import TrainingData
from chimera.models.model import Model, Task
from chimera.training.messages.wire_types import register_wire_type
from chimera.training.nodes_data.description import Column, DataDescription

Scaled: TypeAlias = Literal["none", "declared", "statistics", "each"]
"""Sources of the scaling of number columns: none, declared constants, merged statistics, or each node's own rows."""


@dataclass(frozen=True)
class NodeRequest:
    """The model and data that a node makes for a run whose driver has no data.

    Attributes
    ----------
    model : name and options of the model.
    task, outputs, input_shape : task, number of outputs, and shape of one input.
    columns : the columns of the node's table in the model's order; None if the data is not a table.
    scaled, mean, deviation : how inputs are scaled; mean and deviation of each input, unless they are the node's own.
    rows_per_node : number of rows that a node reports if it does not give its own number.
    averaged : metrics of which the run measures the mean over the nodes.
    """

    model: dict[str, Any]
    task: Task
    outputs: int
    input_shape: tuple[int, ...]
    columns: tuple[Column, ...] | None = None
    scaled: Scaled = "none"
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    rows_per_node: int | None = None
    averaged: tuple[str, ...] = ()


@dataclass(frozen=True)
class DriverSchema:
    """The schema of the driver's model and data. A worker's own model and data must fit it.

    Attributes
    ----------
    shapes : shapes of the model's tensors, in order.
    classes : labels in the order of their indices; None for a regression.
    features : names of the input columns in the model's order; None if the driver does not know them.
    frozen : SHA-256 of the model's frozen parameters; None if there are none.
    request : what a node without a model of its own makes; None if the driver has data.
    """

    shapes: tuple[tuple[int, ...], ...]
    classes: tuple[str, ...] | None
    features: tuple[str, ...] | None
    frozen: str | None = None
    request: NodeRequest | None = None

    @classmethod
    def of(cls, model: Model, data: TrainingData) -> DriverSchema:
        """Return the schema of the driver's model and data."""
        frozen, request = getattr(model, "frozen_digest", None), getattr(data, "request", None)
        return cls(model.layout.shapes, data.classes, data.features, frozen, request)

    def check(self, model: Model, worker: str) -> None:
        """Raise DataError if the model of ``worker`` has another layout, or other frozen parameters."""
        layout = model.layout
        if layout.shapes != self.shapes:
            raise DataError(
                f"the model of {worker} differs from the driver's: "
                f"its tensors are {_described(layout.shapes)}, the driver's are {_described(self.shapes)}"
            )
        if self.frozen is not None and getattr(model, "frozen_digest", None) != self.frozen:
            raise DataError(
                f"the frozen parameters of the model of {worker}, or the alpha of its adapters, differ from the driver's: "
                "start both from the same base model, with the same options"
            )


def _described(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " + ".join("x".join(map(str, shape)) or "1" for shape in shapes[:8]) + (" + ..." if shapes[8:] else "")


register_wire_type(DriverSchema, "counterpart")  # the name in messages since the first version
register_wire_type(DataDescription, "datadescription")
