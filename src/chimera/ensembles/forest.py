"""A forest of trees from many workers (Liu et al. 2022, "Federated Forest")."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor

from chimera.core.errors import ConfigurationError
from chimera.ensembles.ensemble import Ensemble
from chimera.ensembles.worker_pool import Task, WorkerPool

_FORESTS = RandomForestClassifier, RandomForestRegressor, ExtraTreesClassifier, ExtraTreesRegressor


class FederatedForest(Ensemble):
    """A forest of trees that workers grow on their own rows (similar to Liu et al. 2022).

    Workers send trees, not rows. The number of trees of a worker is proportional to the number of its rows.

    Parameters
    ----------
    forest : a random forest or extra-trees estimator of scikit-learn; default: a `RandomForestClassifier`.
    n_estimators : total number of trees.
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

    def _combined(self, pool: WorkerPool, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:  # noqa: ARG002 - the workers have them
        forest = RandomForestClassifier() if self.forest is None else self.forest
        if not isinstance(forest, _FORESTS):
            raise ConfigurationError(f"{type(forest).__name__} is not a forest of sklearn.ensemble")
        if self.n_estimators < self.workers:
            raise ConfigurationError(
                f"n_estimators must be at least the number of workers, {self.workers}, not {self.n_estimators}"
            )
        classes = len(self.classes_) if self._classifies() else None
        shares = _shares(self.n_estimators, [len(targets) if size is None else size for size in pool.sizes])
        grown = pool.results(
            [
                Task("grow", (forest, seed, trees, classes), worker)
                for worker, (trees, seed) in enumerate(zip(shares, self._seeds(self.workers), strict=True))
            ]
        )
        combined = grown[0]
        combined.estimators_ = [tree for part in grown for tree in part.estimators_]
        combined.set_params(n_estimators=self.n_estimators, random_state=clone(forest).random_state)
        if self._classifies():
            combined.classes_ = self.classes_
        return combined

    def _classifies(self) -> bool:
        return self.forest is None or is_classifier(self.forest)


def _shares(trees: int, sizes: list[int]) -> list[int]:
    """Return the number of trees of each worker: proportional to its rows, at least one, ``trees`` in total."""
    shares = [max(int(trees * size / sum(sizes)), 1) for size in sizes]
    order = sorted(range(len(sizes)), key=lambda worker: shares[worker] - trees * sizes[worker] / sum(sizes))
    while (missing := trees - sum(shares)) != 0:
        step = 1 if missing > 0 else -1
        candidates = [worker for worker in (order if step > 0 else order[::-1]) if shares[worker] + step >= 1]
        for worker in candidates[: abs(missing)]:
            shares[worker] += step
    return shares
