"""What all ensembles share: parameters as scikit-learn has them, and a plain scikit-learn ensemble as the result."""

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
from chimera.ensembles.crew import Crew


class Ensemble(BaseEstimator):  # type: ignore[misc]
    """Estimators that are fitted by workers and joined into one.

    ``ensemble_``, once it is fitted, is an ensemble of scikit-learn's own, which needs no Chimera to predict, to be saved,
    loaded and served.
    """

    workers: int
    engine: Any
    partition: Any
    seed: int

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803 - as in scikit-learn
        """Fit to inputs, shape (n, d), and targets, shape (n,).

        Raises
        ------
        DataError : no numbers, or not as many targets as rows.
        ConfigurationError : estimators that cannot be fitted so.
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
        with Crew(self.engine, inputs, targets, workers=self.workers, partition=self.partition, seed=self.seed) as crew:
            self.ensemble_ = self._joined(crew, inputs, targets)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return a class or value for each row."""
        return self._fitted().predict(X)  # type: ignore[no-any-return]

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return probabilities, shape (n, classes)."""
        return self._fitted().predict_proba(X)  # type: ignore[no-any-return]

    def score(self, X: ArrayLike, y: ArrayLike) -> float:  # noqa: N803
        """Return the accuracy, or r2 of values."""
        return float(self._fitted().score(X, y))

    def save(self, path: str | Path) -> Path:
        """Write the ensemble as a skops file, which runs no code when it is read; return the table of the model.

        That is a file beside it, which names the types in it that a reader has to trust, such as scikit-learn's trees; what it
        names, ``chimera infer`` serves.
        """
        try:
            import skops.io
        except ImportError as error:
            raise MissingExtraError("saving an ensemble", "skops", "inference") from error
        file = Path(path)
        write(file, b"")  # skops would make it by the umask
        skops.io.dump(self._fitted(), file)
        trusted = ", ".join(map(repr, sorted(skops.io.get_untrusted_types(file=file))))
        table = file.with_suffix(".toml")
        write(table, f"kind = 'sklearn'\nfile = {file.name!r}\ntrusted = [{trusted}]\n".encode())
        return table

    @abstractmethod
    def _joined(self, crew: Crew, inputs: NDArray[Any], targets: NDArray[Any]) -> Any:
        """Return the fitted ensemble; classes in ``targets`` are 0, 1, ..."""

    @abstractmethod
    def _classifies(self) -> bool:
        """Return whether it is for classes."""

    def _fitted(self) -> Any:
        check_is_fitted(self, "ensemble_")
        return self.ensemble_

    def _seeds(self, count: int) -> list[int]:
        """Return a seed for each of so many fits, whoever makes them."""
        return [int(seed) for seed in np.random.default_rng([self.seed, *b"fits"]).integers(2**31 - 1, size=count)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier" if self._classifies() else "regressor"
        return tags
