"""Voting among different estimators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.utils import Bunch

from chimera.core.errors import ConfigurationError
from chimera.ensembles.crew import Crew, Task
from chimera.ensembles.ensemble import Ensemble


class Voting(Ensemble):
    """Different estimators, each fitted by one worker; they vote, or their probabilities or values are averaged.

    Parameters
    ----------
    estimators : pairs of a name and an estimator, all classifiers or all regressors.
    voting : ``hard`` counts votes, ``soft`` averages probabilities; values are averaged in any case.
    weights : of each; all alike if not given.
    workers, engine, partition, seed : as for `Bagging`; with a partition estimator i sees the rows of worker i modulo their
        number.
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

    def _joined(self, crew: Crew, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:  # noqa: ARG002 - the workers have them
        if self.weights is not None and len(self.weights) != len(self.estimators):
            raise ConfigurationError(f"{len(self.estimators)} estimators have {len(self.weights)} weights")
        fits = zip(self.estimators, self._seeds(len(self.estimators)), strict=True)
        fitted = crew.results(
            [
                Task("fit", (each, seed), None if self.partition is None else i % self.workers)
                for i, ((_, each), seed) in enumerate(fits)
            ]
        )
        given = [(name, each) for name, each in self.estimators]
        if self._classifies():
            joined = VotingClassifier(given, voting=self.voting, weights=self.weights)
            joined.le_, joined.classes_ = self._labels, self.classes_
        else:
            joined = VotingRegressor(given, weights=self.weights)
        joined.estimators_ = [each.estimator for each in fitted]
        names = [name for name, _ in self.estimators]
        joined.named_estimators_ = Bunch(**dict(zip(names, joined.estimators_, strict=True)))
        return joined

    def _classifies(self) -> bool:
        return classifies(self.estimators)


def classifies(estimators: Sequence[tuple[str, Any]]) -> bool:
    """Return whether named estimators are classifiers.

    Raises
    ------
    ConfigurationError : none are given, or some are classifiers and some are not.
    """
    kinds = {is_classifier(each) for _, each in estimators}
    if len(kinds) != 1:
        what = "classifiers and regressors" if kinds else "nobody"
        raise ConfigurationError(f"{what} cannot vote together: give classifiers only, or regressors only")
    return bool(kinds.pop())
