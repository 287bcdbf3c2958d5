"""A forest of trees from many workers (Liu et al. 2022, "Federated Forest")."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor

from chimera.core.errors import ConfigurationError
from chimera.ensembles.crew import Crew, Task
from chimera.ensembles.ensemble import Ensemble

_FORESTS = RandomForestClassifier, RandomForestRegressor, ExtraTreesClassifier, ExtraTreesRegressor


class FederatedForest(Ensemble):
    """Each worker grows trees on its own rows, and all trees are one forest (in the manner of Liu et al. 2022).

    Rows stay where they are: trees travel. How many trees a worker grows goes by how many rows it has.

    Parameters
    ----------
    forest : a forest of scikit-learn, random or of extra trees; by default a `RandomForestClassifier`.
    n_estimators : how many trees there are in all.
    workers, engine, partition, seed : as for `Bagging`.
    """

    def __init__(
        self,
        forest: Any = None,
        n_estimators: int = 100,
        *,
        workers: int = 2,
        engine: Any = "local",
        partition: Any = "iid",
        seed: int = 0,
    ) -> None:
        self.forest, self.n_estimators = forest, n_estimators
        self.workers, self.engine, self.partition, self.seed = workers, engine, partition, seed

    def _joined(self, crew: Crew, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:  # noqa: ARG002 - the workers have them
        forest = RandomForestClassifier() if self.forest is None else self.forest
        if not isinstance(forest, _FORESTS):
            raise ConfigurationError(f"{type(forest).__name__} is no forest: give one of sklearn.ensemble")
        if self.n_estimators < self.workers:
            raise ConfigurationError(f"{self.n_estimators} trees cannot be shared by {self.workers} workers")
        classes = len(self.classes_) if self._classifies() else None
        shares = _shares(self.n_estimators, [len(targets) if size is None else size for size in crew.sizes])
        grown = crew.results(
            [
                Task("grow", (forest, seed, trees, classes), worker)
                for worker, (trees, seed) in enumerate(zip(shares, self._seeds(self.workers), strict=True))
            ]
        )
        joined = grown[0]
        joined.estimators_ = [tree for part in grown for tree in part.estimators_]
        joined.set_params(n_estimators=self.n_estimators, random_state=clone(forest).random_state)
        if self._classifies():
            joined.classes_ = self.classes_
        return joined

    def _classifies(self) -> bool:
        return self.forest is None or is_classifier(self.forest)


def _shares(trees: int, sizes: list[int]) -> list[int]:
    """Return how many trees each worker grows: by its rows, at least one, together ``trees``."""
    shares = [max(int(trees * size / sum(sizes)), 1) for size in sizes]
    order = sorted(range(len(sizes)), key=lambda worker: shares[worker] - trees * sizes[worker] / sum(sizes))
    while (missing := trees - sum(shares)) != 0:
        step = 1 if missing > 0 else -1
        able = [worker for worker in (order if step > 0 else order[::-1]) if shares[worker] + step >= 1]
        for worker in able[: abs(missing)]:
            shares[worker] += step
    return shares
