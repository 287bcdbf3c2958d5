"""Workers around a whole scikit-learn estimator: ``fit`` on the own data, ``predict`` for anybody's rows."""

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

_ROWS_IN_LOOP = 64  # a prediction for more goes into a thread, so that other requests need not wait for it


@dataclass(frozen=True)
class _Fitted:
    estimator: Any
    columns: tuple[str, ...]


class EstimatorWorker(Worker):
    """What `ClassificationWorker` and `RegressionWorker` share.

    Parameters
    ----------
    estimator : of scikit-learn's kind; it is copied, never fitted itself.
    task : what it must be for.
    bootstrap : fit on rows drawn with replacement from the own ones, others for each worker, as bagging does.
    settings : of the node.

    Raises
    ------
    ConfigurationError : no such estimator.
    """

    def __init__(self, estimator: Any, task: Task, *, bootstrap: bool, settings: Settings | None) -> None:
        super().__init__(task, settings)
        self._estimator = _checked(estimator, task)
        self._bootstrap = bool(bootstrap)
        self._fitted: _Fitted | None = None
        self._fitting = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Return what ``/health`` tells of it."""
        return {**super().about(), "fitted": self._fitted is not None}

    def routers(self) -> list[APIRouter]:
        """Return the routes ``/v1/chimera/model/fit`` and ``/v1/chimera/model/predict``."""
        router = plain_router(prefix="/v1/chimera/model", tags=["model"])

        @router.post("/fit", **documented("Fit the model on the worker's own data.", **schemas.FIT, errors=(409, 422)))
        async def fit(request: Request) -> Response:
            if not self._fitting.acquire(blocking=False):
                raise BusyError(f"{self.name} is fitting already: wait until that fit has ended")
            await in_thread(self._fit_and_release, request.app.state.metrics)
            return answer(request, {"fit": "ok"})

        @router.post(
            "/predict", **documented("Predict for these rows.", **schemas.predict(self.task), errors=(409, 422))
        )
        async def predict(request: Request) -> Response:
            columns, rows = required(await read_object(request), "X_pred_columns", "X_pred_rows")
            table = Table.of(columns, rows)
            few = len(table.rows) <= _ROWS_IN_LOOP
            predicted = self.predict(table) if few else await in_thread(self.predict, table)
            request.app.state.metrics.rows_predicted(len(table.rows))
            return answer(request, predicted)

        return [router]

    def _fit_and_release(self, metrics: Any) -> None:
        """Fit, in a thread that outlives a client who goes away."""
        well = False
        try:
            self.fit()
            well = True
        finally:
            self._fitting.release()
            metrics.fit_ended(well=well)

    def fit(self) -> None:
        """Fit a copy of the estimator on the data as they are now; predictions meanwhile are those of the former one.

        Raises
        ------
        DataError : the data cannot be read, or the estimator cannot be fitted on them.
        """
        from sklearn.base import clone

        data = self._data.read()
        self._check(data.y)
        used = data.bootstrapped(self.name) if self._bootstrap else data
        estimator = clone(self._estimator)
        try:
            estimator.fit(used.X, used.y)
        except ValueError as error:  # scikit-learn's own word for data that do not fit
            name = type(estimator).__name__
            raise DataError(f"{name} cannot be fitted on {self._data.folder}: {first_line(error)}") from error
        self._fitted = _Fitted(estimator, data.columns)
        status().info("%s: %s is fitted on %d rows", self.name, type(estimator).__name__, len(used.X))

    def _check(self, targets: NDArray[Any]) -> None:
        """Raise a `DataError` where the targets are not of the task."""

    def predict(self, table: Table) -> dict[str, Any]:
        """Return the body of the answer for these rows.

        Raises
        ------
        NotFittedError : nothing is fitted yet.
        DataError : the columns do not fit, or the estimator does not take the rows.
        """
        fitted = self._fitted
        if fitted is None:
            raise NotFittedError(f"{self.name} has no fitted model yet: POST /v1/chimera/model/fit first")
        rows = table.ordered(fitted.columns)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what became of it is looked at in `sendable`
                return self._predicted(fitted.estimator, rows)
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{type(fitted.estimator).__name__} cannot predict for these rows: {first_line(error)}"
            ) from error

    def _predicted(self, estimator: Any, rows: NDArray[np.float64]) -> dict[str, Any]:
        return {"y_pred_rows": sendable(estimator.predict(rows)) if len(rows) else []}


def sendable(values: Any) -> Any:
    """Return predictions, probabilities or labels as what a body can hold: a numeric array, or a list of texts.

    Raises
    ------
    NonFiniteError : numbers that JSON does not know.
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
        hint = "; it is a class: make an object of it" if isinstance(estimator, type) else ""
        raise ConfigurationError(f"a worker for {task} needs a scikit-learn {what}, not {given}{hint}")
    return estimator
