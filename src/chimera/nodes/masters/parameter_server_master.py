"""A master that trains one model on the data of all workers: each goes one pass over its rows, the master takes the mean."""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.engines.http import HttpEngine
from chimera.models.instantiation import first_line
from chimera.models.linear_estimator import start_at_zero
from chimera.models.model import Task
from chimera.nodes.masters.descent import Descent, Trained
from chimera.nodes.masters.estimator_actor import NetworkActor, question
from chimera.nodes.masters.learning_rate import LearningRate
from chimera.nodes.masters.master import Master
from chimera.nodes.masters.outcome import Failing, outcome, say, say_fitted
from chimera.nodes.settings import Settings
from chimera.nodes.table import Table
from chimera.web.errors import AllWorkersFailed, NotFittedError
from chimera.web.logs import status

_ROWS_IN_LOOP = 64  # what is predicted for more rows is computed beside the event loop

_THEIRS = {
    False: "the workers' own options decide their steps: give them to SGDWorker",
    True: "the workers' own options decide their gradients: give them to SGDWorker",
}

ModelType = Literal["regressor", "classifier"]


class ParameterServerMaster(Master):
    """Sends coefficients and intercept to all workers, subtracts the mean of what comes back, and so on.

    What comes back is how far one pass over a worker's rows goes from the coefficients; a worker counts as much as any other.
    It stops when all of the mean is at most ``epsilon`` in absolute value, or after ``max_iter`` steps. Coefficients are
    float64. A worker that does not answer, or not as documented, is left out of the fit, and named in its answer, in the
    status log and on stderr.

    Workers that answer exact gradients (a `TorchWorker`, an `SGDWorker` with ``exact_gradient``) tell so in their data sample.
    A step is then the learning rate of this master times the mean gradient, in float32. Such a step is one of ``max_iter``;
    scikit-learn makes one of each row that often. So ``eta0`` should be larger than its default of 0.01, which is made for
    single rows: 0.1 or so where columns are standardised.

    Parameters
    ----------
    model_type : ``"regressor"`` or ``"classifier"``.
    epsilon : see above.
    exact_gradient : take the answers of workers that do not tell what they answer for gradients, and leave out a worker that
        answers how far it goes.
    settings : of the node; by default as they are now in the environment and in `chimera.toml`.
    sgd_options : of scikit-learn's `SGDRegressor` or `SGDClassifier`. ``max_iter`` counts here, and ``loss``, by which a
        classifier predicts; with exact gradients also ``learning_rate`` and what it follows: ``eta0``, ``power_t``, ``alpha``,
        ``tol`` and ``n_iter_no_change``. All others are the workers': give them there. A fit names those that had no effect.

    Raises
    ------
    ConfigurationError : another model type, an option or value that cannot be used, or a setting.
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
        self._failing = Failing("predict")
        self._fit: tuple[Trained | None, Any] = None, None  # what it has come to, and what predicts with it

    @property
    def fitted(self) -> bool:
        """Whether a fit has ended well."""
        return self._fit[0] is not None

    def fit(self) -> dict[str, Any]:
        """Train from the beginning, and return the body of the answer; predictions meanwhile are those of the former model.

        Raises
        ------
        AllWorkersFailed : no worker is left; says why for each.
        DataError : the workers' data do not fit each other.
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
            ).run()
        self._fit = trained, None if trained.network else self._predictor(trained)
        status().info("fitted in %d steps", trained.steps)
        say_fitted(names, trained.failures)
        body: dict[str, Any] = {"fit": "ok", "workers": outcome("fit", names, trained.failures)}
        for name, count in trained.left_out.items():
            body["workers"][name]["steps_left_out"] = count
            say(f"{name}: {count} of its answers were not finite, and left out", well=False)
        if useless := self._without_effect(trained.exact_gradient):
            say(f"without effect on this fit: {', '.join(useless)}; {_THEIRS[trained.exact_gradient]}", well=False)
            body["without_effect"] = useless
        return body

    def predict(self, table: Table) -> dict[str, Any]:
        """Return what the model predicts for these rows: values, or labels with classes and probabilities.

        A classifier whose loss gives no probabilities gives 1 to the class that it predicts.

        Raises
        ------
        NotFittedError : nothing is fitted yet.
        DataError : the columns do not fit.
        AllWorkersFailed : the model is a neural network, and no worker, where such predict, has answered.
        """
        trained, predictor = self._fit
        if trained is None:
            raise NotFittedError("nothing is fitted yet: POST /v1/chimera/parameter-server/fit first")
        if trained.network:
            return self._asked(trained, table)
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

    async def predict_soon(self, table: Table) -> dict[str, Any]:
        """Predict for few rows at once: a thread costs more."""
        quick = self._fit[1] is not None and len(table.rows) <= _ROWS_IN_LOOP
        return self.predict(table) if quick else await super().predict_soon(table)

    def close(self) -> None:
        """End a fit under way."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()

    def _without_effect(self, exact_gradient: bool) -> list[str]:
        """Return the options that were given here and did nothing for a fit."""
        effective = {"max_iter"} | ({"loss"} if self._classifies else set())
        if exact_gradient:
            effective |= self._rate.options()
        return sorted(set(self._options) - effective)

    def _estimator(self) -> Any:
        try:
            return self._type(**self._options)
        except TypeError as error:
            raise ConfigurationError(f"{self._type.__name__}: {first_line(error)}") from error

    def _predictor(self, trained: Trained) -> Any:
        """Return scikit-learn's estimator with the trained parameters."""
        task: Task = "classification" if self._classifies else "regression"
        loss = {"loss": self._options["loss"]} if "loss" in self._options else {}
        estimator, classes = self._type(**loss), trained.classes
        start_at_zero(estimator, task, None if classes is None else np.array(classes), len(trained.columns))
        biases = np.size(estimator.intercept_)
        estimator.coef_ = trained.flat[:-biases].astype(np.float64).reshape(np.shape(estimator.coef_))
        estimator.intercept_ = trained.flat[-biases:].astype(np.float64)
        return estimator

    def _asked(self, trained: Trained, table: Table) -> dict[str, Any]:
        """Return what the first worker that answers predicts with the trained network."""
        failures: dict[str, str] = {}
        more = {} if trained.classes is None else {"classes": list(trained.classes)}
        body = question(table, weights=trained.flat, **more)
        with self.engine() as engine:
            for name in self.settings.workers_nodes_names:
                worker = engine.spawn(NetworkActor, name=name)
                try:
                    predicted = dict(engine.get(worker.predict(body)))
                except ChimeraError as error:
                    failures[name] = str(error)
                else:
                    self._failing.note(failures, [name])
                    return predicted | {"workers": outcome("predict", [*failures, name], failures)}
        self._failing.note(failures, [])
        raise AllWorkersFailed(f"no worker has predicted: {'; '.join(failures.values())}")
