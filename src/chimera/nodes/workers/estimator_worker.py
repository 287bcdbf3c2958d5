"""Workers with a scikit-learn estimator: ``fit`` uses the worker's own data, ``predict`` the rows of the request."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError, NonFiniteError
from chimera.models.instantiation import first_line
from chimera.models.model import Task
from chimera.nodes.settings import Settings
from chimera.nodes.table import Table
from chimera.nodes.workers import schemas
from chimera.nodes.workers.worker import Worker
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.errors import BusyError, NotFittedError
from chimera.web.logs import status
from chimera.web.routing import documented, plain_router

_ROWS_IN_LOOP = 64  # predictions for more rows are computed in another thread, so that other requests do not wait


@dataclass(frozen=True)
class _Fitted:
    estimator: Any
    columns: tuple[str, ...]


class EstimatorWorker(Worker):
    """The base class of `ClassificationWorker` and `RegressionWorker`.

    Parameters
    ----------
    estimator : a scikit-learn estimator. Copies of it are fitted.
    task : the task that the estimator must be for.
    bootstrap : fit to a bootstrap sample of the worker's rows, which differs between workers, as in bagging.
    settings : settings of the node.

    Raises
    ------
    ConfigurationError : the estimator is not for this task.
    """

    def __init__(self, estimator: Any, task: Task, *, bootstrap: bool, settings: Settings | None) -> None:
        super().__init__(task, settings)
        self._estimator = _checked(estimator, task)
        self._bootstrap = bool(bootstrap)
        self._fitted: _Fitted | None = None
        self._fitting = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Return the fields of ``/health``."""
        return {**super().about(), "fitted": self._fitted is not None}

    def routers(self) -> list[APIRouter]:
        """Return the routes ``/v1/chimera/model/fit`` and ``/v1/chimera/model/predict``."""
        router = plain_router(prefix="/v1/chimera/model", tags=["model"])

        @router.post(
            "/fit", **documented("Fit the model on the worker's own data.", **schemas.FIT, errors=(409, 422, 503))
        )
        async def fit(request: Request) -> Response:
            await in_thread(self._fit_alone, request.app.state.metrics)
            return answer(request, {"fit": "ok"})

        @router.post(
            "/predict", **documented("Predict for these rows.", **schemas.predict(self.task), errors=(409, 422, 503))
        )
        async def predict(request: Request) -> Response:
            columns, rows = required(await read_object(request), "X_pred_columns", "X_pred_rows")
            table = Table.of(columns, rows)
            few = len(table.rows) <= _ROWS_IN_LOOP
            predicted = self.predict(table) if few else await in_thread(self.predict, table)
            request.app.state.metrics.count_rows(len(table.rows))
            return answer(request, predicted)

        return [router]

    def _fit_alone(self, metrics: Any) -> None:
        """Fit, unless a fit is running. The fit continues in its thread if the client disconnects."""
        if not self._fitting.acquire(blocking=False):  # here, since the thread may not start
            raise BusyError(f"{self.name} is fitting already: wait until that fit has ended")
        ok = False
        try:
            self.fit()
            ok = True
        finally:
            self._fitting.release()
            metrics.count_fit(ok=ok)

    def fit(self) -> None:
        """Fit a copy of the estimator to the current data. Until the fit ends, predictions use the previous copy.

        Raises
        ------
        DataError : the data cannot be read, or the estimator cannot be fitted to them.
        """
        from sklearn.base import clone

        data = self._data.read()
        self._check(data.y)
        used = data.bootstrapped(self.name) if self._bootstrap else data
        estimator = clone(self._estimator)
        try:
            estimator.fit(used.X, used.y)
        except ValueError as error:  # scikit-learn's exception for unsuitable data
            name = type(estimator).__name__
            raise DataError(f"{name} cannot be fitted to {self._data.folder}: {first_line(error)}") from error
        self._fitted = _Fitted(estimator, data.columns)
        status().info("%s: %s is fitted to %d rows", self.name, type(estimator).__name__, len(used.X))

    def _check(self, targets: NDArray[Any]) -> None:
        """Raise a `DataError` if the targets are not suitable for the task."""

    def predict(self, table: Table) -> dict[str, Any]:
        """Return the body of the answer for these rows.

        Raises
        ------
        NotFittedError : no model is fitted yet.
        DataError : the columns do not match, or the estimator refuses the rows.
        """
        fitted = self._fitted
        if fitted is None:
            raise NotFittedError(f"{self.name} has no fitted model yet: POST /v1/chimera/model/fit first")
        rows = table.ordered(fitted.columns)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # `to_serializable` checks that the result is finite
                return self._predicted(fitted.estimator, rows)
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{type(fitted.estimator).__name__} cannot predict for these rows: {first_line(error)}"
            ) from error

    def _predicted(self, estimator: Any, rows: NDArray[np.float64]) -> dict[str, Any]:
        return {"y_pred_rows": to_serializable(estimator.predict(rows)) if len(rows) else []}


def to_serializable(values: Any) -> Any:
    """Convert predictions, probabilities or labels for a body: to a numeric array, or a list of texts.

    Raises
    ------
    NonFiniteError : there are non-finite numbers, which JSON cannot represent.
    """
    array = np.asarray(values)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NonFiniteError(
            "the predictions for these rows are not finite: their numbers are too large for this model"
        )
    return array if array.dtype.kind in "biuf" else array.tolist()


def _checked(estimator: Any, task: Task) -> Any:
    from sklearn.base import is_classifier, is_regressor

    what = "classifier" if task == "classification" else "regressor"
    fits = not isinstance(estimator, type) and all(
        callable(getattr(estimator, name, None)) for name in ("fit", "predict", "get_params")
    )
    if not fits or not (is_classifier if task == "classification" else is_regressor)(estimator):
        given = repr(estimator).partition("\n")[0][:60]
        hint = "; it is a class: create an object" if isinstance(estimator, type) else ""
        raise ConfigurationError(f"a worker for {task} needs a scikit-learn {what}, not {given}{hint}")
    return estimator
