"""Voting among different estimators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.utils import Bunch

from chimera.core.errors import ConfigurationError
from chimera.ensembles.ensemble import Ensemble
from chimera.ensembles.worker_pool import Task, WorkerPool


class Voting(Ensemble):
    """Different estimators, each fitted by one worker, combined by votes or averages.

    Parameters
    ----------
    estimators : pairs of a name and an estimator, all classifiers or all regressors.
    voting : ``hard`` counts votes of classifiers, ``soft`` averages their probabilities. Values of regressors are averaged.
    weights : weight of each estimator; default: equal weights.
    workers, engine, partition, seed : as for `Bagging`. With a partition, estimator i is fitted to the rows of worker i modulo
        the number of workers.
    """

    def __init__(
        self,
        estimators: Sequence[tuple[str, Any]],
        *,
        voting: Literal["hard", "soft"] = "hard",
        weights: Sequence[float] | None = None,
        workers: int = 2,
        engine: Any = "local",
        partition: Any = None,
        seed: int = 0,
    ) -> None:
        self.estimators, self.voting, self.weights = estimators, voting, weights
        self.workers, self.engine, self.partition, self.seed = workers, engine, partition, seed

    def _combined(self, pool: WorkerPool, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:  # noqa: ARG002 - the workers have them
        if self.weights is not None and len(self.weights) != len(self.estimators):
            raise ConfigurationError(
                f"weights must have one value for each of the {len(self.estimators)} estimators, not {len(self.weights)}"
            )
        fits = zip(self.estimators, self._seeds(len(self.estimators)), strict=True)
        fitted = pool.results(
            [
                Task("fit", (each, seed), None if self.partition is None else i % self.workers)
                for i, ((_, each), seed) in enumerate(fits)
            ]
        )
        given = [(name, each) for name, each in self.estimators]
        if self._classifies():
            combined = VotingClassifier(given, voting=self.voting, weights=self.weights)
            combined.le_, combined.classes_ = self._labels, self.classes_
        else:
            combined = VotingRegressor(given, weights=self.weights)
        combined.estimators_ = [each.estimator for each in fitted]
        names = [name for name, _ in self.estimators]
        combined.named_estimators_ = Bunch(**dict(zip(names, combined.estimators_, strict=True)))
        return combined

    def _classifies(self) -> bool:
        return classifies(self.estimators)


def classifies(estimators: Sequence[tuple[str, Any]]) -> bool:
    """Return whether named estimators are classifiers.

    Raises
    ------
    ConfigurationError : the list is empty, or mixes classifiers and regressors.
    """
    kinds = {is_classifier(each) for _, each in estimators}
    if len(kinds) != 1:
        given = "both" if kinds else "none"
        raise ConfigurationError(f"estimators must be classifiers only or regressors only; there are {given}")
    return bool(kinds.pop())
