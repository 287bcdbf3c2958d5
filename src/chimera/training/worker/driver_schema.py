"""The schema that a driver sends to workers with their own model and data, and that both must fit."""

from __future__ import annotations

from dataclasses import dataclass

from chimera.core.errors import DataError
from chimera.core.parameters import Layout
from chimera.data.dataset import TrainingData
from chimera.training.messages.wire_types import register_wire_type


@dataclass(frozen=True)
class DriverSchema:
    """The schema of the driver's model and data. A worker's own model and data must fit it.

    Attributes
    ----------
    shapes : shapes of the model's tensors, in order.
    classes : labels in the order of their indices; None for a regression.
    features : names of the input columns in the model's order; None if the driver does not know them.
    """

    shapes: tuple[tuple[int, ...], ...]
    classes: tuple[str, ...] | None
    features: tuple[str, ...] | None

    @classmethod
    def of(cls, layout: Layout, data: TrainingData) -> DriverSchema:
        """Return the schema of a model with this layout and of the driver's data."""
        return cls(layout.shapes, data.classes, data.features)

    def check(self, layout: Layout, worker: str) -> None:
        """Raise DataError if the model of ``worker`` has another layout."""
        if layout.shapes != self.shapes:
            raise DataError(
                f"the model of {worker} differs from the driver's: "
                f"its tensors are {_described(layout.shapes)}, the driver's are {_described(self.shapes)}"
            )


def _described(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " + ".join("x".join(map(str, shape)) or "1" for shape in shapes[:8]) + (" + ..." if shapes[8:] else "")


register_wire_type(DriverSchema, "counterpart")  # the name in messages since the first version
