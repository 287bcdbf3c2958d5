"""The network of the experiment."""

from torch import nn


def network(*, input_shape: tuple[int, ...], outputs: int, width: int = 32) -> nn.Module:
    """Return a network for inputs of this shape; Chimera passes ``input_shape`` and ``outputs``, which follow from the data."""
    (columns,) = input_shape
    return nn.Sequential(
        nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )
