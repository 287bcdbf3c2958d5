"""Workers for a parameter server: they receive weights, and return a gradient or a step."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from chimera.core.counted import counted
from chimera.core.errors import DataError
from chimera.models.model import Task
from chimera.nodes.settings import Settings
from chimera.nodes.table import Y_FILE, numeric_array
from chimera.nodes.workers import schemas
from chimera.nodes.workers.problem import LocalUpdate, Problem
from chimera.nodes.workers.training_data import Data
from chimera.nodes.workers.worker import Worker
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.routing import documented, plain_router

_SAMPLE_ROWS = 5
_MAX_STEPS = 2**40
_MAX_TEXT_CHARACTERS = 1 << 24  # characters of all labels, each as long as the longest
_SLOW_S = 0.02  # a gradient that takes longer is computed in another thread, which costs about 0.1 ms


class GradientWorker(Worker):
    """The base class of `SGDWorker` and `TorchWorker`, with the routes below ``/v1/chimera/sgd``."""

    def __init__(self, task: Task, settings: Settings | None) -> None:
        super().__init__(task, settings)
        self._lock = threading.Lock()  # only one computation at a time may use a model's vectors
        self._problem: LocalUpdate | None = None
        self._update_key: tuple[Data, tuple[Any, ...] | None] | None = None
        self._took_s = math.inf  # duration of the last gradient; unknown before the first

    @abstractmethod
    def make_problem(self, data: Data, classes: NDArray[Any] | None) -> Problem:
        """Return the problem with these data; ``classes`` are sorted and include every label of the data."""

    def make_local_update(self, data: Data, classes: NDArray[Any] | None) -> LocalUpdate:
        """Return the local update with these data; by default the exact gradient of the problem."""
        return self.make_problem(data, classes)

    @property
    def exact_gradient(self) -> bool:
        """Whether an answer is the gradient at the given parameters, not a step from them."""
        return True

    def routers(self) -> list[APIRouter]:
        """Return the routes of the data sample and of a step."""
        router = plain_router(prefix="/v1/chimera/sgd", tags=["sgd"])

        @router.get(
            "/request-data-sample",
            **documented(
                "Return a few rows, at least one of each class, with columns and classes.",
                **self.sample_page(),
                errors=(422, 503),
            ),
        )
        async def sample(request: Request) -> Response:
            return answer(request, await in_thread(self.sample))

        @router.post(
            "/fit-step",
            **documented(
                "Return the given weights minus those after one pass over the worker's rows, or the gradient at the weights.",
                **schemas.FIT_STEP,
                errors=(422, 503),
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
        """Return the learners for drivers, which train by any strategy with this worker's model and data (see `learner`)."""
        from chimera.nodes.workers.learner import KIND, PRIVATE_KIND, NodeLearner
        from chimera.training.privacy.worker import PrivateWorker

        learner = partial(NodeLearner, self)
        return {KIND: learner, PRIVATE_KIND: partial(PrivateWorker, learner=learner)}

    def sample_page(self) -> dict[str, Any]:
        """Return the OpenAPI schemas of the sample."""
        return schemas.sample()

    def sample(self) -> dict[str, Any]:
        """Return a few rows of the current data; with ``share_samples`` off, columns and classes only.

        Masters use the columns, and collect all classes from the labels. The rows are for other programs.

        Raises
        ------
        DataError : the data are invalid.
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
        """Return the weights minus those after a local step, or the gradient at the weights, in the shape of the weights.

        Parameters
        ----------
        weights, bias : lists or arrays, see `Problem.load`.
        classes : all labels, sorted, if this worker's data lack some of them.
        step : number of steps that the fit has taken before; None: one more than in the last call.

        Raises
        ------
        DataError : the data are invalid, or the arguments do not match them.
        NonFiniteError : the result is not finite.
        """
        with self._lock:
            problem = self._current(classes, weights)
            shape = problem.load(weights, bias)
            began = time.perf_counter()
            gradient = problem.gradient(step)
            self._took_s = time.perf_counter() - began
            cut = gradient.size - problem.biases
            return {"weights_gradients": gradient[:cut].reshape(shape).copy(), "bias_gradient": gradient[cut:].copy()}

    def max_classes(self, weights: int, width: int) -> int:  # noqa: ARG002 - subclasses use it
        """Return the largest number of classes of a model with this many weights and inputs of this width."""
        return weights

    def _current(self, classes: Any, weights: Any = None) -> LocalUpdate:
        """Return the local update with these classes, the same object as before if classes and data have not changed.

        Raises
        ------
        DataError : the classes do not match the data, or are too many for the weights of the request. A model would otherwise
            be created for any number of classes.
        """
        data, key = self.read(), classes if classes is None else tuple(_plain_labels(classes))
        if self._problem and self._update_key and self._update_key[0] is data and self._update_key[1] == key:
            return self._problem
        labels = None
        if key is not None and weights is not None:
            size = numeric_array(weights, "weights").size
            if len(key) > max(2, self.max_classes(size, data.X.shape[1])):
                raise DataError(f"weights has {counted(size, 'number')}: too few for {len(key)} classes")
        if self.task == "classification":
            own = np.unique(data.y)
            labels = own if key is None else _sorted_labels(key, own)
        elif key is not None:
            raise DataError("classes are not allowed for a regression")
        self._problem = None
        self._problem, self._update_key = self.make_local_update(data, labels), (data, key)
        return self._problem

    def read(self) -> Data:
        """Return the current data.

        Raises
        ------
        DataError : the data are invalid.
        """
        data = self._data.read()
        if data.y.ndim > 1:
            raise DataError(f"{self._data.folder / Y_FILE} must have one column, not {data.y.shape[1]}")
        return data


def _step_number(step: Any) -> int | None:
    if step is None or (isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= _MAX_STEPS):
        return step
    raise DataError(f"step must be a whole number from 0 to {_MAX_STEPS}, the number of steps that the fit has taken")


def _plain_labels(classes: Any) -> list[Any]:
    labels = classes.tolist() if isinstance(classes, np.ndarray) else classes
    if isinstance(labels, list | tuple) and all(isinstance(label, str | int | float) for label in labels):
        return list(labels)
    raise DataError("classes must be a list of labels: texts, numbers or booleans")


def _sorted_labels(key: tuple[Any, ...], own: NDArray[Any]) -> NDArray[Any]:
    """Return the given classes as an array.

    Raises
    ------
    DataError : the classes have another type than the worker's labels, are not sorted, or lack one of its labels.
    """
    texts = [isinstance(label, str) for label in key]
    if len(key) * max((len(label) for label in key if isinstance(label, str)), default=0) > _MAX_TEXT_CHARACTERS:
        raise DataError("classes has texts that are too long")  # each label would have the size of the longest text
    if any(texts) != all(texts) or any(texts) != (own.dtype.kind == "U") or not key:
        raise DataError(f"classes must have the type of this worker's labels, such as {own[0].item()!r}")
    labels = np.array(key)
    if labels.dtype.kind not in "biufU" or not np.array_equal(np.unique(labels), labels):
        raise DataError("classes must be sorted, without repetition")
    lacking = np.setdiff1d(own, labels)
    if len(lacking):
        raise DataError(f"classes lacks {lacking[0].item()!r}, a label in this worker's data")
    return labels
