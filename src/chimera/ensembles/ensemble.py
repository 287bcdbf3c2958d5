"""The base class of ensembles: scikit-learn's interface, with a plain scikit-learn ensemble as the result."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.validation import check_is_fitted, check_X_y

from chimera.core.errors import DataError, MissingExtraError
from chimera.core.private import write
from chimera.ensembles.worker_pool import WorkerPool


class Ensemble(BaseEstimator):  # type: ignore[misc]
    """Estimators that workers fit, combined into one ensemble.

    After `fit`, ``ensemble_`` is an ensemble of scikit-learn, which can predict, be saved, loaded and served without Chimera.
    """

    workers: int
    engine: Any
    partition: Any
    seed: int

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803 - as in scikit-learn
        """Fit to inputs, shape (n, d), and targets, shape (n,).

        Raises
        ------
        DataError : the data are not numeric, or targets and rows differ in number.
        ConfigurationError : a parameter is invalid, or an estimator cannot be fitted to the data.
        """
        try:
            inputs, targets = check_X_y(X, y, dtype=None, y_numeric=not self._classifies())
        except ValueError as error:
            raise DataError(str(error).strip().split("\n")[0]) from error
        self.n_features_in_ = inputs.shape[1]
        if self._classifies():
            self._labels = LabelEncoder().fit(targets)
            self.classes_ = self._labels.classes_
            targets = self._labels.transform(targets)
        targets = np.ascontiguousarray(targets)
        with WorkerPool(
            self.engine, inputs, targets, workers=self.workers, partition=self.partition, seed=self.seed
        ) as pool:
            self.ensemble_ = self._combined(pool, inputs, targets)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return a class or value for each row."""
        return self._fitted().predict(X)  # type: ignore[no-any-return]

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return probabilities, shape (n, classes)."""
        return self._fitted().predict_proba(X)  # type: ignore[no-any-return]

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """Return the accuracy of a classifier, or r2 of a regressor."""
        return float(self._fitted().score(X, y))

    def save(self, path: str | Path) -> Path:
        """Write the ensemble as a skops file, which runs no code when it is read; return the path of its model table.

        The table is a TOML file in the same folder. It names the types that a reader must trust, such as scikit-learn's trees.
        ``chimera infer`` serves the model that it describes.

        Raises
        ------
        MissingExtraError : skops is not installed.
        """
        try:
            import skops.io
        except ImportError as error:
            raise MissingExtraError("saving an ensemble", "skops", "inference") from error
        file = Path(path)
        write(file, b"")  # creates the file as private; skops would use the umask
        skops.io.dump(self._fitted(), file)
        trusted = ", ".join(map(repr, sorted(skops.io.get_untrusted_types(file=file))))
        table = file.with_suffix(".toml")
        write(table, f"kind = 'sklearn'\nfile = {file.name!r}\ntrusted = [{trusted}]\n".encode())
        return table

    @abstractmethod
    def _combined(self, pool: WorkerPool, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:
        """Return the fitted ensemble; classes in ``targets`` are 0, 1, ..."""

    @abstractmethod
    def _classifies(self) -> bool:
        """Return whether the ensemble is a classifier."""

    def _fitted(self) -> Any:
        check_is_fitted(self, "ensemble_")
        return self.ensemble_

    def _seeds(self, count: int) -> list[int]:
        """Return ``count`` seeds, one for each fit, independent of the worker that does it."""
        return [int(seed) for seed in np.random.default_rng([self.seed, *b"fits"]).integers(2**31 - 1, size=count)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier" if self._classifies() else "regressor"
        return tags
