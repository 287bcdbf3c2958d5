"""A worker that returns the gradient of a neural network on its own rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError, MissingExtraError
from chimera.models.instantiation import first_line, instantiate
from chimera.models.loss import LossFunction
from chimera.models.losses import INDICATOR_LOSSES, make_loss
from chimera.models.model import MODELS, Task
from chimera.nodes.settings import Settings
from chimera.nodes.table import Table, numeric_array
from chimera.nodes.workers import schemas
from chimera.nodes.workers.estimator_worker import to_serializable
from chimera.nodes.workers.gradient_worker import GradientWorker
from chimera.nodes.workers.problem import Problem, float32_rows
from chimera.nodes.workers.training_data import Data
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.errors import NotFittedError
from chimera.web.routing import documented, plain_router

if TYPE_CHECKING:
    from torch import Tensor, nn

    from chimera.models.torch_model import TorchModel

_LIBRARY = "huggingface"
_SEED = 0  # seed of the initial weights, which must be the same on all workers


class TorchWorker(GradientWorker):
    """Receives all parameters of a network as one flat list, and returns the gradient of the loss over its own rows.

    Its data sample also contains the initial ``weights`` and an empty ``bias``. It predicts at ``/v1/chimera/model/predict``
    with the weights in the body, or with those of the last request.

    Parameters
    ----------
    model_factory : a function without arguments, such as a class, that returns an ``nn.Module``; or the name of a model of
        Chimera, such as ``"mlp"``. Rows of ``"huggingface"`` are tokens, and its task is ``sequence-classification``.
    loss : name or function of a loss, see `chimera.models.torch_model.TorchModel`.
    task : task of the outputs; default: the task of the loss.
    classes : all labels, sorted, if this worker's rows may lack some; default: the labels in its data.
    options : options of a model that is given by name.
    settings : settings of the node; default: from the environment and `chimera.toml`.

    Raises
    ------
    ConfigurationError : the model, the loss or a setting is invalid.
    MissingExtraError : torch is not installed.
    """

    def __init__(
        self,
        model_factory: str | Callable[[], nn.Module],
        loss: str | LossFunction = "cross-entropy",
        *,
        task: Task | None = None,
        classes: Sequence[Any] | None = None,
        options: Mapping[str, Any] | None = None,
        settings: Settings | None = None,
    ) -> None:
        if isinstance(model_factory, str):
            MODELS.find(model_factory)
        elif not callable(model_factory) or options:
            raise ConfigurationError(
                "model_factory must be the name of a model or a function without arguments; options need a name"
            )
        try:
            made = make_loss(loss, task)
        except ModuleNotFoundError as error:
            raise MissingExtraError("a TorchWorker", "torch", "train") from error
        self._factory, self._loss, self._options = model_factory, loss, dict(options or {})
        if model_factory == _LIBRARY:
            self._check_task(made.name)
        self._loss_name, self._classes = made.name, None if classes is None else list(classes)
        super().__init__(made.task, settings)

    def _check_task(self, loss: str) -> None:
        from chimera.models.huggingface.rows import TASK

        if self._options.get("task") != TASK or loss != "cross-entropy":
            raise ConfigurationError(
                f"a row of a node has one target: the model {_LIBRARY!r} needs the option task = {TASK!r}, and the loss "
                "'cross-entropy'"
            )

    def sample_page(self) -> dict[str, Any]:
        """Return the OpenAPI schemas of the sample."""
        return schemas.sample(weights=True)

    def routers(self) -> list[APIRouter]:
        """Return the routes of training and prediction."""
        router = plain_router(prefix="/v1/chimera/model", tags=["model"])
        page = schemas.predict(self.task, weights=True)

        @router.post("/predict", **documented("Predict for these rows.", **page, errors=(409, 422, 503)))
        async def predict(request: Request) -> Response:
            value = await read_object(request)
            table = Table.of(*required(value, "X_pred_columns", "X_pred_rows"))
            predicted = await in_thread(self.predict, table, value.get("weights"), value.get("classes"))
            request.app.state.metrics.count_rows(len(table.rows))
            return answer(request, predicted)

        return [*super().routers(), router]

    def sample(self) -> dict[str, Any]:
        """Return a few rows of the data, and the initial weights."""
        sample = super().sample()
        with self._lock:
            problem = self._network(self._classes)
            first = self._model(problem.inputs.shape[1], problem.classes).parameters() if problem.loaded else None
            weights = problem.model.parameters() if first is None else first
            return {**sample, "weights": weights.copy(), "bias": []}

    def fit_step(self, weights: Any, bias: Any, classes: Any = None, step: int | None = None) -> dict[str, Any]:
        """Return the gradient at these weights; see `GradientWorker.fit_step`."""
        return super().fit_step(weights, bias, self._classes if classes is None else classes, step)

    def _network(self, classes: Any, weights: Any = None) -> Problem:
        problem = self._current(classes, weights)
        assert isinstance(problem, Problem)
        return problem

    def predict(self, table: Table, weights: Any = None, classes: Any = None) -> dict[str, Any]:
        """Return the body of the answer for these rows.

        Raises
        ------
        NotFittedError : the request has no weights, and no earlier request had any.
        DataError : the columns or the weights do not match.
        """
        with self._lock:
            problem = self._problem
            if weights is not None:
                problem = self._network(self._classes if classes is None else classes, weights)
                problem.load(weights, [])
            if not isinstance(problem, Problem) or not problem.loaded:
                raise NotFittedError(f"{self.name} has no weights yet: train first, or send 'weights'")
            rows = numeric_array(table.ordered(problem.columns), "X_pred_rows", np.float32)
            outputs = problem.model.predict(rows) if len(rows) else None
        if problem.classes is None:
            return {"y_pred_rows": [] if outputs is None else to_serializable(outputs)}
        labels = problem.classes.tolist()
        if outputs is None:
            return {"y_pred_rows": [], "classes": labels, "y_proba_rows": []}
        chosen = problem.classes[outputs.argmax(1)]
        return {"y_pred_rows": to_serializable(chosen), "classes": labels, "y_proba_rows": to_serializable(outputs)}

    def make_problem(self, data: Data, classes: NDArray[Any] | None) -> Problem:
        """Return the network's problem with these data. Labels are numbered in the order of the classes."""
        model = self._model(data.X.shape[1], classes)
        targets = data.y.astype(np.float32) if classes is None else np.searchsorted(classes, data.y)
        inputs = float32_rows(data)
        try:
            made = model.predict(inputs[:1])
        except RuntimeError as error:
            raise DataError(
                f"the network does not accept rows with {inputs.shape[1]} columns: {first_line(error)}"
            ) from error
        if classes is not None and made.shape[1] != len(classes):
            raise DataError(f"the network has outputs for {made.shape[1]} classes, but there are {len(classes)}")
        return Problem(model, inputs, targets, data.columns, classes, (model.parameters().size,), 0)

    def _model(self, width: int, classes: NDArray[Any] | None) -> TorchModel:
        from chimera.models.torch_model import TorchModel

        factory = self._factory
        if isinstance(factory, str):
            outputs = 1 if classes is None else self._outputs(len(classes))
            options = {"input_shape": (width,), "outputs": outputs, "count_outputs": lambda: outputs}
            wanted = inspect.signature(MODELS.find(factory).factory).parameters
            given = {name: value for name, value in options.items() if name in wanted and name not in self._options}
            module: Any = partial(MODELS.create, factory, self._options, **given)
            if factory == _LIBRARY:
                from chimera.models.huggingface.rows import on_rows

                made = instantiate(module, seed=_SEED, name=factory)
                return on_rows(made.module, {"accuracy": _accuracy})
        else:
            module = factory
        if classes is None:
            return TorchModel(module, loss=self._loss, task=self.task, seed=_SEED)
        return TorchModel(
            module,
            loss=self._loss,
            metrics={"accuracy": _accuracy},
            task=self.task,
            predict_transform=self._probabilities,
            seed=_SEED,
        )

    def _outputs(self, classes: int) -> int:
        return 1 if self._loss_name in INDICATOR_LOSSES and classes == 2 else classes

    def _probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, shape (n, classes)."""
        import torch

        if outputs.ndim == 1 or outputs.shape[1] == 1:
            second = outputs.reshape(-1, 1) if self._loss_name == "bce" else torch.sigmoid(outputs.reshape(-1, 1))
            return torch.cat([1 - second, second], 1)
        return outputs.exp() if self._loss_name == "nll" else outputs.softmax(1)


def _accuracy(targets: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """Return the fraction of rows whose most probable class is the target."""
    return float(np.mean(probabilities.argmax(1) == targets))
