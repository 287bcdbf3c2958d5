"""The routes of a worker that returns steps or gradients, as an actor class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, all_finite
from chimera.engines.http import Route
from chimera.nodes.masters.gradient_server import exact_message
from chimera.nodes.masters.labels import read_labels
from chimera.nodes.table import match_columns, numeric_array
from chimera.training.messages.rejection import Rejected


@dataclass(frozen=True)
class Sample:
    """The data sample of a worker.

    Attributes
    ----------
    columns, labels : names of its inputs, and labels in its sample.
    weights : initial weights of a neural network; None for a linear model.
    exact_gradient : whether the worker returns gradients instead of steps; None if it does not state this.
    """

    columns: tuple[str, ...]
    labels: tuple[Any, ...]
    weights: Flat | None
    exact_gradient: bool | None


@dataclass(frozen=True)
class ParameterFormat:
    """The format of the parameters in requests to one worker.

    Attributes
    ----------
    weights_shape : shape of the weights: (outputs, d), or (P,) for a neural network.
    biases : number of biases.
    order : index of the master's column for each of the worker's columns; None if the order is the same.
    classes : value of ``classes``; None if the worker has all classes itself.
    precision : floating-point type of the parameters and answers.
    """

    weights_shape: tuple[int, ...]
    biases: int
    order: tuple[int, ...] | None = None
    classes: tuple[Any, ...] | None = None
    precision: type[np.floating[Any]] = np.float32


class GradientActor:
    """A worker of one fit. Any failure of a call means that the worker is lost for this fit."""

    failure_is_loss = True

    def __init__(self, rank: int) -> None:
        self._rank, self._step = rank, 0
        self._format = ParameterFormat((0,), 0)

    def set_format(self, format_: ParameterFormat) -> None:
        """Set the format of the parameters in later requests."""
        self._format = format_

    def go_to(self, step: int) -> None:
        """Set the number of the next step."""
        self._step = step

    def _sample(self, document: dict[str, Any]) -> Sample:
        columns, targets = document["X_train_sample_columns"], document["y_train_sample_rows"]
        if not (isinstance(columns, list | tuple) and columns and all(isinstance(name, str) for name in columns)):
            raise ValueError("X_train_sample_columns must be a list of names, at least one")
        match_columns(columns, columns)  # refuses repeated names
        rows = targets.tolist() if isinstance(targets, np.ndarray) else targets
        if not isinstance(rows, list | tuple):
            raise ValueError("y_train_sample_rows must be a list of rows")
        labels = read_labels("y_train_sample_rows", [row[0] if isinstance(row, list) else row for row in rows])
        weights, exact = document.get("weights"), document.get("exact_gradient")
        if not (exact is None or isinstance(exact, bool)):
            raise ValueError("exact_gradient must be true or false")
        first = None if weights is None else numeric_array(weights, "weights", np.float32).reshape(-1).copy()
        return Sample(tuple(columns), tuple(labels), first, True if first is not None else exact)

    def _request(self, weights: Encoded) -> dict[str, Any]:
        format_ = self._format
        flat = decode(weights, math.prod(format_.weights_shape) + format_.biases)
        size = math.prod(format_.weights_shape)
        rows = flat[:size].reshape(format_.weights_shape)
        if format_.order is not None:
            rows = rows[:, list(format_.order)]
        document: dict[str, Any] = {"weights": rows, "bias": flat[size:], "step": self._step}
        if format_.classes is not None:
            document["classes"] = list(format_.classes)
        return document

    def _gradient(self, document: dict[str, Any]) -> Sequence[Encoded | Rejected]:
        format_ = self._format
        size = math.prod(format_.weights_shape)
        gradient = np.empty(size + format_.biases, format_.precision)
        rows = np.asarray(_numbers(document["weights_gradients"]), np.float64).reshape(format_.weights_shape)
        with np.errstate(over="ignore"):
            gradient[size:] = np.asarray(_numbers(document["bias_gradient"]), np.float64).reshape(format_.biases)
            if format_.order is None:
                gradient[:size] = rows.reshape(-1)
            else:
                gradient[:size].reshape(format_.weights_shape)[:, list(format_.order)] = rows
        step, self._step = self._step, self._step + 1
        if not all_finite(gradient):
            return [Rejected(self._rank, step, "the worker's gradient is NaN or infinite")]
        return [exact_message(gradient)]

    routes: ClassVar[dict[str, Route]] = {
        "sample": Route(
            verb="GET",
            path="/v1/chimera/sgd/request-data-sample",
            encode=lambda _: None,
            decode=_sample,
            idempotent=True,
        ),
        "gradient": Route(
            verb="POST", path="/v1/chimera/sgd/fit-step", encode=_request, decode=_gradient, idempotent=True
        ),
    }


def _numbers(value: Any) -> Any:
    """Return numbers from JSON, with NaN for null, because JSON cannot represent NaN and infinity.

    Raises
    ------
    ValueError : a value is neither a number nor null.
    """
    if isinstance(value, np.ndarray):
        return value
    return [_numbers(part) if isinstance(part, list) else _number(part) for part in value]


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.40} is not a number")
    return value
