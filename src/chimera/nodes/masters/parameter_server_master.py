"""A master that trains one model on the data of all workers, with the mean of their steps or gradients."""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np

from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.engines.http import HttpEngine
from chimera.models.instantiation import first_line
from chimera.models.linear_estimator import start_at_zero
from chimera.models.model import Task
from chimera.nodes.masters.descent import Descent, FitResult
from chimera.nodes.masters.estimator_actor import NetworkActor, predict_body
from chimera.nodes.masters.learning_rate import LearningRate
from chimera.nodes.masters.master import Master
from chimera.nodes.masters.outcome import FailureReporter, outcome, report, report_fit
from chimera.nodes.settings import Settings
from chimera.nodes.table import Table
from chimera.web.errors import AllWorkersFailed, NotFittedError
from chimera.web.logs import status

_ROWS_IN_LOOP = 64  # predictions for more rows are computed in another thread

_GIVE_TO_WORKERS = {
    False: "the steps depend on the workers' own options: give these to SGDWorker",
    True: "the gradients depend on the workers' own options: give these to SGDWorker",
}

ModelType = Literal["regressor", "classifier"]


class ParameterServerMaster(Master):
    """Repeatedly sends coefficients and intercept to all workers, and subtracts the mean of their answers.

    An answer is the step of one pass over the worker's rows: the coefficients before the pass minus those after it. All workers
    have equal weight. The fit stops when all elements of the mean are at most ``epsilon`` in absolute value, or after
    ``max_iter`` steps. Coefficients are float64. A worker that does not answer correctly is dropped from the fit; the answer,
    the status log and stderr name it.

    Workers that return exact gradients (a `TorchWorker`, an `SGDWorker` with ``exact_gradient``) state this in their data
    sample. A step is then the learning rate of this master times the mean gradient, in float32. It counts as one of
    ``max_iter``, whereas scikit-learn takes a step for each row in each iteration. ``eta0`` should therefore be larger than
    its default 0.01: about 0.1 if columns are standardised.

    Parameters
    ----------
    model_type : ``"regressor"`` or ``"classifier"``.
    epsilon : see above; default 1e-11.
    exact_gradient : assume gradients from workers that do not state what they return, and drop workers that return steps.
    settings : settings of the node; default: from the environment and `chimera.toml`.
    sgd_options : options of scikit-learn's `SGDRegressor` or `SGDClassifier`. This master uses ``max_iter``, and ``loss`` for a
        classifier's predictions; with exact gradients also ``learning_rate`` with ``eta0``, ``power_t``, ``alpha``, ``tol`` and
        ``n_iter_no_change``. Give all others to the workers. A fit names the options that had no effect.

    Raises
    ------
    ConfigurationError : the model type, an option or a setting is invalid.
    """

    def __init__(
        self,
        model_type: ModelType,
        epsilon: float = 1e-11,
        *,
        exact_gradient: bool = False,
        settings: Settings | None = None,
        **sgd_options: Any,
    ) -> None:
        from sklearn.linear_model import SGDClassifier, SGDRegressor

        types: dict[str, Any] = {"regressor": SGDRegressor, "classifier": SGDClassifier}
        if model_type not in types:
            raise ConfigurationError(f"model_type must be 'regressor' or 'classifier', not {model_type!r}")
        if not isinstance(epsilon, int | float) or not epsilon >= 0:
            raise ConfigurationError(f"epsilon must be a number of at least 0, not {epsilon!r}")
        self._type, self._options = types[model_type], sgd_options
        self._classifies, self._exact = model_type == "classifier", bool(exact_gradient)
        estimator = self._estimator()
        if not isinstance(estimator.max_iter, int) or estimator.max_iter < 1:
            raise ConfigurationError(f"max_iter must be a whole number of at least 1, not {estimator.max_iter!r}")
        self._epsilon, self._max_iter = float(epsilon), estimator.max_iter
        self._rate = LearningRate.of(estimator)
        super().__init__("parameter-server", settings)
        self._lock = threading.Lock()
        self._engine: HttpEngine | None = None
        self._failing = FailureReporter("predict")
        self._fit: tuple[FitResult | None, Any] = None, None  # the result of the last fit, and an estimator with it

    @property
    def fitted(self) -> bool:
        """Whether a fit has succeeded."""
        return self._fit[0] is not None

    def fit(self) -> dict[str, Any]:
        """Train from the start, and return the body of the answer. Until the fit ends, predictions use the previous model.

        Raises
        ------
        AllWorkersFailed : no worker is left; the message states the reason for each.
        DataError : the workers' data do not match.
        NonFiniteError : the steps are too long.
        """
        with self._lock:
            engine = self._engine = self.engine()
        with engine:
            names = self.settings.workers_nodes_names
            trained = Descent(
                engine,
                names,
                classifies=self._classifies,
                exact_gradient=self._exact,
                rate=self._rate,
                epsilon=self._epsilon,
                max_iter=self._max_iter,
                max_bytes=self.settings.max_body_bytes,
            ).run()
        self._fit = trained, None if trained.network else self._predictor(trained)
        status().info("fitted in %d steps", trained.steps)
        report_fit(names, trained.failures)
        body: dict[str, Any] = {"fit": "ok", "workers": outcome("fit", names, trained.failures)}
        for name, count in trained.left_out.items():
            body["workers"][name]["steps_left_out"] = count
            report(f"{name}: {count} of its answers were not finite and were left out", ok=False)
        if useless := self._without_effect(trained.exact_gradient):
            advice = _GIVE_TO_WORKERS[trained.exact_gradient]
            report(f"options without effect on this fit: {', '.join(useless)}; {advice}", ok=False)
            body["without_effect"] = useless
        return body

    def predict(self, table: Table) -> dict[str, Any]:
        """Return the predictions for these rows: values, or labels with classes and probabilities.

        If the loss of a classifier has no probabilities, the predicted class has probability 1.

        Raises
        ------
        NotFittedError : no model is fitted yet.
        DataError : the columns do not match.
        AllWorkersFailed : the model is a neural network, which predicts on workers, and no worker answered.
        """
        trained, predictor = self._fit
        if trained is None:
            raise NotFittedError("no model is fitted yet: POST /v1/chimera/parameter-server/fit first")
        if trained.network:
            return self._predict_on_worker(trained, table)
        rows = table.ordered(trained.columns)
        if trained.classes is None:
            return {"y_pred_rows": predictor.predict(rows) if len(rows) else []}
        classes = list(trained.classes)
        if not len(rows):
            return {"y_pred_rows": [], "classes": classes, "y_proba_rows": []}
        labels = predictor.predict(rows)
        if hasattr(predictor, "predict_proba"):
            probabilities = predictor.predict_proba(rows)
        else:
            probabilities = (labels[:, None] == predictor.classes_[None, :]).astype(np.float64)
        return {"y_pred_rows": labels.tolist(), "classes": classes, "y_proba_rows": probabilities}

    async def predict_async(self, table: Table) -> dict[str, Any]:
        """Predict few rows in the event loop, because a thread takes longer; more rows in a thread."""
        quick = self._fit[1] is not None and len(table.rows) <= _ROWS_IN_LOOP
        return self.predict(table) if quick else await super().predict_async(table)

    def close(self) -> None:
        """Stop a running fit."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()

    def _without_effect(self, exact_gradient: bool) -> list[str]:
        """Return the options of this master that had no effect on a fit."""
        effective = {"max_iter"} | ({"loss"} if self._classifies else set())
        if exact_gradient:
            effective |= self._rate.options()
        return sorted(set(self._options) - effective)

    def _estimator(self) -> Any:
        try:
            return self._type(**self._options)
        except TypeError as error:
            raise ConfigurationError(f"{self._type.__name__}: {first_line(error)}") from error

    def _predictor(self, trained: FitResult) -> Any:
        """Return scikit-learn's estimator with the trained parameters."""
        task: Task = "classification" if self._classifies else "regression"
        loss = {"loss": self._options["loss"]} if "loss" in self._options else {}
        estimator, classes = self._type(**loss), trained.classes
        start_at_zero(estimator, task, None if classes is None else np.array(classes), len(trained.columns))
        biases = np.size(estimator.intercept_)
        estimator.coef_ = trained.flat[:-biases].astype(np.float64).reshape(np.shape(estimator.coef_))
        estimator.intercept_ = trained.flat[-biases:].astype(np.float64)
        return estimator

    def _predict_on_worker(self, trained: FitResult, table: Table) -> dict[str, Any]:
        """Return the prediction of the trained network by the first worker that answers."""
        failures: dict[str, str] = {}
        more = {} if trained.classes is None else {"classes": list(trained.classes)}
        body = predict_body(table, weights=trained.flat, **more)
        with self.engine() as engine:
            for name in self.settings.workers_nodes_names:
                worker = engine.spawn(NetworkActor, name=name)
                try:
                    predicted = dict(engine.get(worker.predict(body)))
                    if (count := len(predicted["y_pred_rows"])) != len(table.rows):
                        raise DataError(f"it returned {count} predictions for {len(table.rows)} rows")
                except ChimeraError as error:
                    failures[name] = str(error)
                else:
                    self._failing.note(failures, [name])
                    return predicted | {"workers": outcome("predict", [*failures, name], failures)}
        self._failing.note(failures, [])
        raise AllWorkersFailed(f"no worker has predicted: {'; '.join(failures.values())}")
