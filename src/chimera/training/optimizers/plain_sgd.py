"""Plain SGD in NumPy, for machines without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout, SparseRows


class PlainSGD:
    """Steps one flat vector in place: x <- x - lr g. It remembers nothing.

    torch rounds once where this rounds twice, so that results differ from those with torch in their last bits.

    Parameters
    ----------
    flat : the parameters, float32, shape (P,), writable.
    learning_rate : of a step, by the number of steps before it.

    Raises
    ------
    ConfigurationError : the learning rate is no number of at least 0.
    """

    def __init__(self, flat: Flat, learning_rate: Callable[[int], float]) -> None:
        try:
            first = learning_rate(0)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the optimizer 'sgd' refuses its options: {error}") from error
        if not first >= 0:
            raise ConfigurationError(f"the optimizer 'sgd' refuses its options: lr must be at least 0, not {first}")
        self._flat, self._learning_rate = flat, learning_rate

    def step(self, gradient: Flat, number: int) -> None:
        """Take one step with ``gradient``, shape (P,); ``number``, of those taken before, decides the rate."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._flat -= np.float32(self._learning_rate(number)) * gradient

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take one step with a gradient that is zero in all other rows."""
        rows = layout.gather(self._flat, gradient.numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            rows -= np.float32(self._learning_rate(number)) * gradient.values
        layout.scatter(SparseRows(gradient.numbers, rows), self._flat)

    def curvature(self) -> None:
        """Return None: it keeps no squares of gradients."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return nothing."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
