"""One pass of a linear estimator over a worker's rows, from the coefficients in the request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError, NonFiniteError
from chimera.core.parameters import all_finite
from chimera.models.instantiation import first_line
from chimera.nodes.workers.problem import coefficients


class LocalEpoch:
    """One ``partial_fit`` per step, in float64, with the estimator's own options.

    The result of a step depends only on the coefficients and its number, so that a repeated request has the same answer. The
    number determines the estimator's counter of samples, on which its learning rate depends.

    Parameters
    ----------
    make : returns the unfitted estimator. Without a ``random_state``, rows are shuffled with ``seed`` plus the step's number.
    inputs : float64, shape (n, d), contiguous.
    targets : shape (n,).
    classes : sorted classes of a classifier, which include every target; None for a regression.
    seed : see ``make``.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        inputs: NDArray[np.float64],
        targets: NDArray[Any],
        classes: NDArray[Any] | None,
        seed: int,
    ) -> None:
        self._make, self._seed = make, seed
        self._inputs, self._targets = inputs, targets
        self._options = {} if classes is None else {"classes": classes}
        self.biases = 1 if classes is None or len(classes) == 2 else len(classes)
        self._shape = (self.biases, inputs.shape[1])
        self._next = 0
        self._begin()

    def _begin(self) -> None:
        self._estimator = self._make()
        self._own_order = self._estimator.random_state is not None

    def load(self, weights: Any, bias: Any) -> tuple[int, ...]:
        """Set the coefficients, and return the shape in which the weights came.

        Raises
        ------
        DataError : the shape is wrong, or a value is not finite.
        """
        given, self._bias = coefficients(weights, bias, self._shape, self.biases, np.float64)
        self._weights = given.reshape(self._shape)
        return given.shape

    def gradient(self, step: int | None) -> NDArray[np.float64]:
        """Return the coefficients and intercepts before one ``partial_fit`` minus those after it.

        Parameters
        ----------
        step : number of steps that the fit has taken before; None: one more than in the last call.

        Raises
        ------
        NonFiniteError : the result is not finite.
        DataError : the estimator refuses the rows.
        """
        number = self._next if step is None else step
        if number == 0:
            self._begin()
        self._next = number + 1
        estimator = self._estimator
        if not self._own_order:
            estimator.random_state = (self._seed + number) % 2**32
        # partial_fit works in place; for a regression the coefficients are one row.
        estimator.coef_ = self._weights.copy() if self._options else self._weights[0].copy()
        estimator.intercept_ = self._bias.copy()
        estimator.t_ = 1.0 + number * len(self._inputs)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the result is checked below
                estimator.partial_fit(self._inputs, self._targets, **self._options)
                change = np.empty(math.prod(self._shape) + self.biases)
                change[: -self.biases] = self._weights.reshape(-1) - np.ravel(estimator.coef_)
                change[-self.biases :] = self._bias - estimator.intercept_
        except ValueError as error:
            kind = NonFiniteError if "flow occurred" in str(error) else DataError
            raise kind(f"{type(estimator).__name__} cannot take this step: {first_line(error)}") from error
        if not all_finite(change):
            raise NonFiniteError(
                f"the coefficients of {type(estimator).__name__} are not finite: choose a smaller eta0, or scale the columns"
            )
        return change
