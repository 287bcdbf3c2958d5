"""One pass of a linear estimator over a worker's rows, from the coefficients that the worker is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError, NonFiniteError
from chimera.core.parameters import all_finite
from chimera.models.instantiation import first_line
from chimera.nodes.workers.gradient_worker import coefficients


class LocalEpoch:
    """One ``partial_fit`` per step, in double precision, with the estimator's own options.

    A step is a function of the coefficients and of its number: the estimator's counter of samples, which its learning rate
    follows, is set by the number, and so a step that is asked for twice has the same answer.

    Parameters
    ----------
    make : makes the estimator, not fitted. Without a ``random_state``, rows are shuffled by ``seed`` plus the step's number.
    inputs : float64, shape (n, d), contiguous.
    targets : shape (n,).
    classes : of a classifier, sorted; every target is one of them.
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
        DataError : they are of another shape, or not finite.
        """
        given, self._bias = coefficients(weights, bias, self._shape, self.biases, np.float64)
        self._weights = given.reshape(self._shape)
        return given.shape

    def gradient(self, step: int | None) -> NDArray[np.float64]:
        """Return the coefficients that were set minus those that one ``partial_fit`` reaches from them, and so the intercepts.

        Parameters
        ----------
        step : how many steps the fit has taken; None for one more than at the last call.

        Raises
        ------
        NonFiniteError : what is reached is not finite.
        DataError : the estimator does not take the rows.
        """
        number = self._next if step is None else step
        if number == 0:
            self._begin()
        self._next = number + 1
        estimator = self._estimator
        if not self._own_order:
            estimator.random_state = (self._seed + number) % 2**32
        # partial_fit works in place, and takes the row alone for a regression.
        estimator.coef_ = self._weights.copy() if self._options else self._weights[0].copy()
        estimator.intercept_ = self._bias.copy()
        estimator.t_ = 1.0 + number * len(self._inputs)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what became of it is looked at below
                estimator.partial_fit(self._inputs, self._targets, **self._options)
                change = np.empty(math.prod(self._shape) + self.biases)
                change[: -self.biases] = self._weights.reshape(-1) - np.ravel(estimator.coef_)
                change[-self.biases :] = self._bias - estimator.intercept_
        except ValueError as error:
            kind = NonFiniteError if "flow occurred" in str(error) else DataError
            raise kind(f"{type(estimator).__name__} cannot take this step: {first_line(error)}") from error
        if not all_finite(change):
            raise NonFiniteError(
                f"{type(estimator).__name__} reaches no finite coefficients: take a smaller eta0, or scale the columns"
            )
        return change
