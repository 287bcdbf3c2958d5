"""Workers that a parameter server trains with: they answer weights with a gradient, or with how far they go from them."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from chimera.core.errors import DataError, NonFiniteError
from chimera.core.parameters import Flat, all_finite
from chimera.models.model import Model, Task
from chimera.nodes.settings import Settings
from chimera.nodes.table import Y_FILE, numbers
from chimera.nodes.workers import schemas
from chimera.nodes.workers.training_data import Data
from chimera.nodes.workers.worker import Worker
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.routing import documented, plain_router

_SAMPLE_ROWS = 5
_MOST_STEPS = 2**40
_SLOW_S = 0.02  # a gradient that takes longer is computed beside the event loop; a thread costs about 0.1 ms


@dataclass
class Problem:
    """A model, the data that its gradient is of, and how its parameters are told in a body.

    Attributes
    ----------
    model : its flat parameters are the weights, row by row, and then the biases.
    inputs : float32, shape (n, d), contiguous.
    targets : as the model takes them, shape (n,).
    columns : the names of the inputs.
    classes : the labels, of a classifier.
    weights_shape, biases : shape of the weights, (outputs, d) or (P,), and the number of biases.
    loaded : whether anybody has set the parameters yet.
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
        """Set the parameters, and return the shape in which the weights came.

        Raises
        ------
        DataError : they are of another shape, or not finite.
        """
        given, biases = coefficients(weights, bias, self.weights_shape, self.biases, np.float32)
        size, flat = given.size, self.model.parameters()
        flat[:size], flat[size:] = given.reshape(-1), biases
        self.loaded = True
        return given.shape

    def gradient(self, step: int | None = None) -> Flat:  # noqa: ARG002 - it is the same at every step
        """Return the mean gradient over all rows at the parameters as they are; the next call overwrites it.

        Raises
        ------
        NonFiniteError : the weights are too large for it.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what became of it is looked at below
            gradient, _ = self.model.gradient((self.inputs, self.targets))
        if not all_finite(gradient):
            raise NonFiniteError("the gradient at these weights is not finite: they are too large; take smaller steps")
        return gradient


class Steppable(Protocol):
    """What a step is computed with: a `Problem`, or a `LocalEpoch`."""

    biases: int

    def load(self, weights: Any, bias: Any) -> tuple[int, ...]:
        """Set the parameters, and return the shape in which the weights came."""

    def gradient(self, step: int | None) -> NDArray[Any]:
        """Return what the step answers, shape (P,): weights row by row, and then biases."""


def coefficients(
    weights: Any, bias: Any, shape: tuple[int, ...], biases: int, dtype: type[np.floating[Any]]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return weights and bias as finite arrays, the weights in the shape in which they came.

    Raises
    ------
    DataError : they are of another shape, or not finite.
    """
    given, intercepts = numbers(weights, "weights", dtype), numbers(bias, "bias", dtype)
    if given.shape != shape and not (given.shape == (math.prod(shape),) and shape[0] == 1):
        raise DataError(f"weights must have the shape {shape}, these have {given.shape}")
    if intercepts.shape != (biases,):
        raise DataError(f"bias must have {biases} numbers, this has the shape {intercepts.shape}")
    return given, intercepts


class GradientWorker(Worker):
    """What `SGDWorker` and `TorchWorker` share: the routes below ``/v1/chimera/sgd``."""

    def __init__(self, task: Task, settings: Settings | None) -> None:
        super().__init__(task, settings)
        self._lock = threading.Lock()  # a model's vectors are used by one computation at a time
        self._problem: Steppable | None = None
        self._made_of: tuple[Data, tuple[Any, ...] | None] | None = None
        self._took_s = math.inf  # unknown until the first one

    @abstractmethod
    def make_problem(self, data: Data, classes: NDArray[Any] | None) -> Problem:
        """Return the problem on these data; ``classes`` are sorted, and hold every label of the data."""

    def make_steppable(self, data: Data, classes: NDArray[Any] | None) -> Steppable:
        """Return what a step is computed with on these data; by default the exact gradient of the problem."""
        return self.make_problem(data, classes)

    @property
    def exact_gradient(self) -> bool:
        """Whether a step answers the gradient at the parameters that came, and not how far the worker went from them."""
        return True

    def routers(self) -> list[APIRouter]:
        """Return the routes of the data sample and of a step."""
        router = plain_router(prefix="/v1/chimera/sgd", tags=["sgd"])

        @router.get(
            "/request-data-sample",
            **documented(
                "A few rows, at least one of each class: columns and classes.", **self.sample_page(), errors=(422,)
            ),
        )
        async def sample(request: Request) -> Response:
            return answer(request, await in_thread(self.sample))

        @router.post(
            "/fit-step",
            **documented(
                "These weights minus those that one pass over all own rows reaches; or the gradient at these weights.",
                **schemas.FIT_STEP,
                errors=(422,),
            ),
        )
        async def step(request: Request) -> Response:
            value = await read_object(request)
            weights, bias = required(value, "weights", "bias")
            given = weights, bias, value.get("classes"), _step_number(value.get("step"))
            quick = self._took_s < _SLOW_S and not self._lock.locked()
            return answer(request, self.fit_step(*given) if quick else await in_thread(self.fit_step, *given))

        return [router]

    def actors(self) -> Mapping[str, Callable[..., Any]]:
        """Let drivers train with this worker's model and data, by any strategy (see `chimera.nodes.workers.learner`)."""
        from chimera.nodes.workers.learner import KIND, PRIVATE_KIND, NodeLearner
        from chimera.training.privacy.worker import PrivateWorker

        learner = partial(NodeLearner, self)
        return {KIND: learner, PRIVATE_KIND: partial(PrivateWorker, learner=learner)}

    def sample_page(self) -> dict[str, Any]:
        """Return what the OpenAPI pages say about the sample."""
        return schemas.sample()

    def sample(self) -> dict[str, Any]:
        """Return a few rows of the data as their files are now; with ``share_samples`` off, columns and classes only.

        Masters use the columns, and the labels to know all classes. The rows are for programs that ask for them.

        Raises
        ------
        DataError : the data cannot be used.
        """
        data = self.read()
        shares = self.settings.share_samples
        of_classes = np.unique(data.y, return_index=True)[1].tolist() if self.task == "classification" else []
        chosen = sorted({*range(min(_SAMPLE_ROWS, len(data.X))), *of_classes}) if shares else of_classes
        return {
            "X_train_sample_columns": list(data.columns),
            "X_train_sample_rows": data.X[chosen if shares else []],
            "y_train_sample_columns": list(data.y_columns),
            "y_train_sample_rows": [[label] for label in data.y[chosen].tolist()],
            "exact_gradient": self.exact_gradient,
        }

    def fit_step(self, weights: Any, bias: Any, classes: Any = None, step: int | None = None) -> dict[str, Any]:
        """Return these weights minus those that are reached from them, or the gradient at them, in their shape.

        Parameters
        ----------
        weights, bias : lists or arrays, see `Problem.load`.
        classes : all labels, sorted, where other workers know more than this one.
        step : how many steps the fit has taken before; None for one more than at the last call.

        Raises
        ------
        DataError : the data cannot be used, or what was given does not fit them.
        NonFiniteError : the weights are too large.
        """
        with self._lock:
            problem = self._current(classes)
            shape = problem.load(weights, bias)
            began = time.perf_counter()
            gradient = problem.gradient(step)
            self._took_s = time.perf_counter() - began
            cut = gradient.size - problem.biases
            return {"weights_gradients": gradient[:cut].reshape(shape).copy(), "bias_gradient": gradient[cut:].copy()}

    def _current(self, classes: Any) -> Steppable:
        """Return the problem with these classes; the one of the last call, unless classes or data are others."""
        data, key = self.read(), classes if classes is None else tuple(_plain_labels(classes))
        if self._problem and self._made_of and self._made_of[0] is data and self._made_of[1] == key:
            return self._problem
        labels = None
        if self.task == "classification":
            own = np.unique(data.y)
            labels = own if key is None else _sorted_labels(key, own)
        elif key is not None:
            raise DataError("a regression has no classes")
        self._problem = None
        self._problem, self._made_of = self.make_steppable(data, labels), (data, key)
        return self._problem

    def read(self) -> Data:
        """Return the data as their files are now.

        Raises
        ------
        DataError : they cannot be used.
        """
        data = self._data.read()
        if data.y.ndim > 1:
            raise DataError(f"{self._data.folder / Y_FILE} must have one column, and has {data.y.shape[1]}")
        return data


def float32_rows(data: Data) -> NDArray[np.float32]:
    """Return the inputs as the models take them, contiguous.

    Raises
    ------
    DataError : there are numbers beyond float32.
    """
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(data.X, np.float32)
    beyond = ~np.isfinite(rows)
    if beyond.any():
        row, column = np.argwhere(beyond)[0].tolist()
        raise DataError(
            f"X_train.csv, row {row + 1}, column {data.columns[column]!r}: {data.X[row, column]} is beyond float32: scale it"
        )
    return rows


def _step_number(step: Any) -> int | None:
    if step is None or (isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= _MOST_STEPS):
        return step
    raise DataError(f"step must be a whole number from 0 to {_MOST_STEPS}: how many steps the fit has taken")


def _plain_labels(classes: Any) -> list[Any]:
    labels = classes.tolist() if isinstance(classes, np.ndarray) else classes
    if isinstance(labels, list | tuple) and all(isinstance(label, str | int | float) for label in labels):
        return list(labels)
    raise DataError("classes must be a list of labels: texts, numbers or truth values")


def _sorted_labels(key: tuple[Any, ...], own: NDArray[Any]) -> NDArray[Any]:
    """Return the classes as an array, in which every own label is.

    Raises
    ------
    DataError : they are of another kind, not sorted, or lack one.
    """
    texts = [isinstance(label, str) for label in key]
    if any(texts) != all(texts) or any(texts) != (own.dtype.kind == "U") or not key:
        raise DataError(f"classes must be labels as this worker has them, such as {own[0].item()!r}")
    labels = np.array(key)
    if labels.dtype.kind not in "biufU" or not np.array_equal(np.unique(labels), labels):
        raise DataError("classes must be sorted, without repetition")
    lacking = np.setdiff1d(own, labels)
    if len(lacking):
        raise DataError(f"classes lacks {lacking[0].item()!r}, which this worker has rows of")
    return labels
