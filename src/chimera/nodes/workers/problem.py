"""The gradient of a model over a worker's training data, at parameters of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError, NonFiniteError
from chimera.core.parameters import Flat, all_finite
from chimera.models.model import Model
from chimera.nodes.table import numeric_array
from chimera.nodes.workers.training_data import Data


@dataclass
class Problem:
    """A model, its training data, and the format of its parameters in a body.

    Attributes
    ----------
    model : its flat parameters are the weights, row by row, and then the biases.
    inputs : float32, shape (n, d), contiguous.
    targets : in the model's format, shape (n,).
    columns : names of the inputs.
    classes : labels of a classifier; None for a regression.
    weights_shape, biases : shape of the weights, (outputs, d) or (P,), and the number of biases.
    loaded : whether the parameters have been set.
    """

    model: Model
    inputs: NDArray[np.float32]
    targets: NDArray[Any]
    columns: tuple[str, ...]
    classes: NDArray[Any] | None
    weights_shape: tuple[int, ...]
    biases: int
    loaded: bool = False

    def load(self, weights: Any, bias: Any) -> tuple[int, ...]:
        """Set the parameters, and return the shape of the given weights.

        Raises
        ------
        DataError : a shape is wrong, or a value is not finite.
        """
        given, biases = coefficients(weights, bias, self.weights_shape, self.biases, np.float32)
        size, flat = given.size, self.model.parameters()
        flat[:size], flat[size:] = given.reshape(-1), biases
        self.loaded = True
        return given.shape

    def gradient(self, step: int | None = None) -> Flat:  # noqa: ARG002 - the gradient is the same at every step
        """Return the mean gradient over all rows at the current parameters. The next call overwrites it.

        Raises
        ------
        NonFiniteError : the gradient is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the result is checked below
            gradient, _ = self.model.gradient((self.inputs, self.targets))
        if not all_finite(gradient):
            raise NonFiniteError("the gradient at these weights is not finite: use a smaller learning rate")
        return gradient


class LocalUpdate(Protocol):
    """The computation of a worker's answer: the gradient of a `Problem`, or the step of a `LocalEpoch`."""

    biases: int

    def load(self, weights: Any, bias: Any) -> tuple[int, ...]:
        """Set the parameters, and return the shape of the given weights."""

    def gradient(self, step: int | None) -> NDArray[Any]:
        """Return the gradient or step, shape (P,): weights row by row, and then biases."""


def coefficients(
    weights: Any, bias: Any, shape: tuple[int, ...], biases: int, dtype: type[np.floating[Any]]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return weights and bias as finite arrays. The weights keep their given shape.

    Raises
    ------
    DataError : a shape is wrong, or a value is not finite.
    """
    given, intercepts = numeric_array(weights, "weights", dtype), numeric_array(bias, "bias", dtype)
    if given.shape != shape and not (given.shape == (math.prod(shape),) and shape[0] == 1):
        raise DataError(f"weights must have the shape {shape}, not {given.shape}")
    if intercepts.shape != (biases,):
        raise DataError(f"bias must have {biases} numbers, not the shape {intercepts.shape}")
    return given, intercepts


def float32_rows(data: Data) -> NDArray[np.float32]:
    """Return the inputs as a contiguous float32 array.

    Raises
    ------
    DataError : a number exceeds the range of float32.
    """
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(data.X, np.float32)
    beyond = ~np.isfinite(rows)
    if beyond.any():
        row, column = np.argwhere(beyond)[0].tolist()
        raise DataError(
            f"X_train.csv, row {row + 1}, column {data.columns[column]!r}: {data.X[row, column]} exceeds the range of float32: "
            "scale the column"
        )
    return rows
