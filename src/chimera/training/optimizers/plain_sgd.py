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
    """Updates one flat vector in place, x <- x - lr g, without state.

    torch rounds once where this class rounds twice, so results differ from torch's in the last bits.

    Parameters
    ----------
    flat : parameters, float32, shape (P,), writable.
    learning_rate : returns the learning rate of a step, counted from 0.

    Raises
    ------
    ConfigurationError : the learning rate is not a number of at least 0.
    """

    def __init__(self, flat: Flat, learning_rate: Callable[[int], float]) -> None:
        first = learning_rate(0)
        if not first >= 0:
            raise ConfigurationError(f"the optimizer 'sgd' refuses its options: lr must be at least 0, not {first}")
        self._flat, self._learning_rate = flat, learning_rate

    def step(self, gradient: Flat, number: int) -> None:
        """Take step ``number`` (from 0) with ``gradient``, shape (P,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._flat -= np.float32(self._learning_rate(number)) * gradient

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take step ``number`` (from 0) with a gradient that is zero outside the given rows."""
        rows = layout.gather(self._flat, gradient.numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            rows -= np.float32(self._learning_rate(number)) * gradient.values
        layout.scatter(SparseRows(gradient.numbers, rows), self._flat)

    def curvature(self) -> None:
        """Return None: SGD keeps no squares of gradients."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return an empty state."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""
