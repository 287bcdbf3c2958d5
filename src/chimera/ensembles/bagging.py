"""Bagging (Breiman 1996, "Bagging Predictors")."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.tree import DecisionTreeClassifier

from chimera.core.errors import ConfigurationError
from chimera.ensembles.ensemble import Ensemble
from chimera.ensembles.fitter import Fitted
from chimera.ensembles.worker_pool import Task, WorkerPool


class Bagging(Ensemble):
    """Estimators fitted to random samples of their worker's rows; probabilities or values are averaged (Breiman 1996).

    If all workers have all the data, the result depends only on the seed, not on the number of workers.

    Parameters
    ----------
    estimator : any scikit-learn estimator; default: a decision tree.
    n_estimators : number of estimators.
    max_samples : fraction of a worker's rows in each sample, above 0, at most 1.
    bootstrap : whether samples are drawn with replacement.
    oob_score : whether to set ``oob_score_``, the out-of-bag score: accuracy or r2.
    workers : number of workers.
    engine : name or table of an engine, or an engine object, which stays open.
    seed : seed of all random numbers.
    partition : division of the rows among the workers (``iid``, ``dirichlet``, ...); None: all workers have all rows.
    """

    def __init__(
        self,
        estimator: Any = None,
        n_estimators: int = 10,
        *,
        max_samples: float = 1.0,
        bootstrap: bool = True,
        oob_score: bool = False,
        workers: int = 2,
        engine: Any = "local",
        partition: Any = None,
        seed: int = 0,
    ) -> None:
        self.estimator, self.n_estimators, self.max_samples = estimator, n_estimators, max_samples
        self.bootstrap, self.oob_score = bootstrap, oob_score
        self.workers, self.engine, self.partition, self.seed = workers, engine, partition, seed

    def _combined(self, pool: WorkerPool, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:
        if self.n_estimators < 1 or not 0 < self.max_samples <= 1:
            raise ConfigurationError(
                "n_estimators must be at least 1, and max_samples above 0 and at most 1, "
                f"not {self.n_estimators} and {self.max_samples}"
            )
        if self.oob_score and not self.bootstrap and self.max_samples == 1:
            raise ConfigurationError("oob_score needs rows that were not drawn: set bootstrap, or max_samples below 1")
        estimator = DecisionTreeClassifier() if self.estimator is None else self.estimator
        probabilities = hasattr(estimator, "predict_proba") and self._classifies()
        oob_method = ("predict_proba" if probabilities else "predict") if self.oob_score else None
        owner = [None] * self.workers if self.partition is None else list(range(self.workers))
        fitted = pool.results(
            [
                Task(
                    "draw_and_fit",
                    (estimator, seed, self.max_samples, self.bootstrap, oob_method),
                    owner[i % self.workers],
                )
                for i, seed in enumerate(self._seeds(self.n_estimators))
            ]
        )
        if oob_method is not None:
            self._set_oob_score(fitted, targets)
        kind = BaggingClassifier if self._classifies() else BaggingRegressor
        combined = kind(estimator, self.n_estimators, max_samples=self.max_samples, bootstrap=self.bootstrap)
        combined.estimator_, combined.estimators_ = clone(estimator), [each.estimator for each in fitted]
        combined.n_features_in_ = inputs.shape[1]
        combined.estimators_features_ = [np.arange(inputs.shape[1])] * len(fitted)
        if self._classifies():
            combined.classes_, combined.n_classes_ = self.classes_, len(self.classes_)
        self.estimators_ = combined.estimators_
        return combined

    def _set_oob_score(self, fitted: list[Fitted], targets: NDArray[Any]) -> None:
        """Set ``oob_score_`` from the predictions of each estimator for the rows that it was not fitted to."""
        columns = len(self.classes_) if self._classifies() else 1
        total, votes = np.zeros((len(targets), columns)), np.zeros(len(targets))
        for each in fitted:
            votes[each.left_out] += 1
            found = each.predictions
            if not len(found):
                continue
            if not self._classifies():
                total[each.left_out, 0] += found
            elif found.ndim == 1:
                total[each.left_out, found] += 1
            else:
                total[np.ix_(each.left_out, each.estimator.classes_)] += found
        there = votes > 0
        if not there.any():
            raise ConfigurationError("oob_score: every row was drawn by every estimator; take more estimators")
        mean = total[there] / votes[there, None]
        self.oob_score_ = float(
            accuracy_score(targets[there], mean.argmax(1))
            if self._classifies()
            else r2_score(targets[there], mean[:, 0])
        )

    def _classifies(self) -> bool:
        return self.estimator is None or is_classifier(self.estimator)
