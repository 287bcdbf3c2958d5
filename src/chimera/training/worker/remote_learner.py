"""Workers that have a model and data of their own: what the driver tells them of its own."""

from __future__ import annotations

from dataclasses import dataclass

from chimera.core.errors import DataError
from chimera.core.parameters import Layout
from chimera.data.dataset import Dataset
from chimera.training.messages.wire_types import let_travel


@dataclass(frozen=True)
class Counterpart:
    """What the driver's model and data are like, which a worker's own must fit.

    Attributes
    ----------
    shapes : of the tensors of the model, in order.
    classes : the labels in the order of their numbers; None for a regression.
    features : the names of the columns of the inputs in the model's order, if the driver knows them.
    """

    shapes: tuple[tuple[int, ...], ...]
    classes: tuple[str, ...] | None
    features: tuple[str, ...] | None

    @classmethod
    def of(cls, layout: Layout, data: Dataset) -> Counterpart:
        """Return what is to be told of a model of this layout, and of the driver's data."""
        return cls(layout.shapes, data.classes, data.features)

    def check(self, layout: Layout, who: str) -> None:
        """Raise DataError unless the model of ``who`` has this layout."""
        if layout.shapes != self.shapes:
            raise DataError(
                f"{who} has another model than the driver: {_told(layout.shapes)} in place of {_told(self.shapes)}"
            )


def _told(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " + ".join("x".join(map(str, shape)) or "1" for shape in shapes[:8]) + (" + ..." if shapes[8:] else "")


let_travel(Counterpart)
