"""Stacking (Wolpert 1992, "Stacked Generalization")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier, StackingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import check_cv
from sklearn.utils import Bunch

from chimera.ensembles.ensemble import Ensemble
from chimera.ensembles.voting import classifies
from chimera.ensembles.worker_pool import Task, WorkerPool


class Stacking(Ensemble):
    """A final estimator that is fitted to cross-validated predictions of other estimators (Wolpert 1992).

    Each fold of each estimator, and each estimator's fit to all rows, is a separate task for the next free worker.

    Parameters
    ----------
    estimators : pairs of a name and an estimator, all classifiers or all regressors.
    final_estimator : the estimator that is fitted to their predictions; default: logistic regression or ridge regression.
    cv : number of folds, or a splitter of scikit-learn.
    passthrough : whether the final estimator also gets the inputs.
    workers, engine, seed : as for `Bagging`; all workers have all the data.
    """

    partition = None

    def __init__(
        self,
        estimators: Sequence[tuple[str, Any]],
        final_estimator: Any = None,
        *,
        cv: Any = 5,
        passthrough: bool = False,
        workers: int = 2,
        engine: Any = "local",
        seed: int = 0,
    ) -> None:
        self.estimators, self.final_estimator, self.cv, self.passthrough = estimators, final_estimator, cv, passthrough
        self.workers, self.engine, self.seed = workers, engine, seed

    def _combined(self, pool: WorkerPool, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:
        folds = list(check_cv(self.cv, targets, classifier=self._classifies()).split(inputs, targets))
        methods = [_method(each) if self._classifies() else "predict" for _, each in self.estimators]
        tasks = []
        for (_, each), method, seed in zip(self.estimators, methods, self._seeds(len(self.estimators)), strict=True):
            tasks.append(Task("fit", (each, seed)))
            tasks += [Task("predicted", (each, seed, train, test, method)) for train, test in folds]
        found = pool.results(tasks)
        each_has = len(folds) + 1
        fitted = [found[first].estimator for first in range(0, len(found), each_has)]
        columns = [
            _in_order([test for _, test in folds], found[first + 1 : first + each_has], len(targets))
            for first in range(0, len(found), each_has)
        ]
        last = clone(self.final_estimator or (LogisticRegression() if self._classifies() else RidgeCV()))
        last.fit(np.column_stack([*columns, inputs] if self.passthrough else columns), targets)
        return self._stacked(fitted, methods, last)

    def _stacked(self, fitted: list[Any], methods: list[str], last: Any) -> Any:
        kind = StackingClassifier if self._classifies() else StackingRegressor
        combined = kind(list(self.estimators), self.final_estimator, cv=self.cv, passthrough=self.passthrough)
        combined.estimators_, combined.final_estimator_, combined.stack_method_ = fitted, last, methods
        names = [name for name, _ in self.estimators]
        combined.named_estimators_ = Bunch(**dict(zip(names, fitted, strict=True)))
        if self._classifies():
            combined._label_encoder, combined.classes_ = self._labels, self.classes_
        return combined

    def _classifies(self) -> bool:
        return classifies(self.estimators)


def _method(estimator: Any) -> str:
    return next(name for name in ("predict_proba", "decision_function", "predict") if hasattr(estimator, name))


def _in_order(tests: list[NDArray[Any]], predictions: list[NDArray[Any]], rows: int) -> NDArray[Any]:
    """Return the predictions of all folds in the order of the rows. If there are two columns, return only the second."""
    whole = np.empty((rows, *predictions[0].shape[1:]))
    for test, found in zip(tests, predictions, strict=True):
        whole[test] = found
    return whole[:, 1:] if whole.ndim == 2 and whole.shape[1] == 2 else whole
