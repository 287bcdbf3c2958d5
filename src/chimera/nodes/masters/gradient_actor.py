"""A worker that takes steps or computes gradients, as the parameter server calls it."""

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
from chimera.nodes.masters.gradient_server import whole
from chimera.training.messages.rejection import Rejected


@dataclass(frozen=True)
class Sample:
    """What a worker tells of its data.

    Attributes
    ----------
    columns, labels : the names of its inputs, and the labels in its sample.
    weights : with which training begins, of a neural network; None for a linear model.
    exact_gradient : whether it answers gradients, and not how far it went; None if it does not tell.
    """

    columns: tuple[str, ...]
    labels: tuple[Any, ...]
    weights: Flat | None
    exact_gradient: bool | None


@dataclass(frozen=True)
class Form:
    """How the parameters stand in the requests to one worker.

    Attributes
    ----------
    weights_shape : of the weights, (outputs, d); or (P,), of a neural network.
    biases : how many.
    order : which column of the master's each of the worker's is; None if they are in the same order.
    classes : what is sent as ``classes``; None where the worker knows them by itself.
    precision : of the parameters and of the answers.
    """

    weights_shape: tuple[int, ...]
    biases: int
    order: tuple[int, ...] | None = None
    classes: tuple[Any, ...] | None = None
    precision: type[np.floating[Any]] = np.float32


class GradientActor:
    """Stands for a worker; any failure of its calls means that it is lost for this fit."""

    failure_is_loss = True

    def __init__(self, rank: int) -> None:
        self._rank, self._step = rank, 0
        self._form = Form((0,), 0)

    def take(self, form: Form) -> None:
        """Send the parameters in this form from now on."""
        self._form = form

    def go_to(self, step: int) -> None:
        """Count from this step."""
        self._step = step

    def _sample(self, document: dict[str, Any]) -> Sample:
        columns, labels = document["X_train_sample_columns"], document["y_train_sample_rows"]
        if not all(isinstance(name, str) for name in columns):
            raise ValueError("X_train_sample_columns are names")
        plain = [label[0] if isinstance(label, list) else label for label in np.asarray(labels, object).tolist()]
        if not all(isinstance(label, str | bool | int | float) for label in plain):
            raise ValueError("y_train_sample_rows are rows of one label each")
        weights, exact = document.get("weights"), document.get("exact_gradient")
        if exact not in (None, True, False):
            raise ValueError("exact_gradient is true or false")
        first = None if weights is None else np.array(weights, np.float32).reshape(-1)
        return Sample(tuple(columns), tuple(plain), first, True if first is not None else exact)

    def _request(self, weights: Encoded) -> dict[str, Any]:
        form = self._form
        flat = decode(weights, math.prod(form.weights_shape) + form.biases)
        size = math.prod(form.weights_shape)
        rows = flat[:size].reshape(form.weights_shape)
        if form.order is not None:
            rows = rows[:, list(form.order)]
        document: dict[str, Any] = {"weights": rows, "bias": flat[size:], "step": self._step}
        if form.classes is not None:
            document["classes"] = list(form.classes)
        return document

    def _gradient(self, document: dict[str, Any]) -> Sequence[Encoded | Rejected]:
        form = self._form
        size = math.prod(form.weights_shape)
        gradient = np.empty(size + form.biases, form.precision)
        rows = np.asarray(_numbers(document["weights_gradients"]), np.float64).reshape(form.weights_shape)
        with np.errstate(over="ignore"):
            gradient[size:] = np.asarray(_numbers(document["bias_gradient"]), np.float64).reshape(form.biases)
            if form.order is None:
                gradient[:size] = rows.reshape(-1)
            else:
                gradient[:size].reshape(form.weights_shape)[:, list(form.order)] = rows
        step, self._step = self._step, self._step + 1
        if not all_finite(gradient):
            return [Rejected(self._rank, step, "the worker's gradient is NaN or infinite")]
        return [whole(gradient)]

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
    """Return what JSON told, with NaN for a number that it has no word for."""
    if isinstance(value, np.ndarray):
        return value
    return [_numbers(part) if isinstance(part, list) else math.nan if part is None else part for part in value]
