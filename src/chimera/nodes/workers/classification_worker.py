"""A worker around any scikit-learn classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.nodes.settings import Settings
from chimera.nodes.table import Y_FILE
from chimera.nodes.workers.estimator_worker import EstimatorWorker, sendable


class ClassificationWorker(EstimatorWorker):
    """Fits a classifier on its own rows; answers with labels, classes and probabilities.

    Parameters
    ----------
    classifier : any of scikit-learn's kind; one without ``predict_proba`` gives probability 1 to the class it predicts.
    bootstrap : fit on as many rows drawn with replacement from its own, by a seed that is made of the worker's name.
    settings : of the node; by default as they are now in the environment and in `chimera.toml`.

    Raises
    ------
    ConfigurationError : it is no classifier, or a setting cannot be used.
    """

    def __init__(self, classifier: Any, bootstrap: bool = False, *, settings: Settings | None = None) -> None:
        super().__init__(classifier, "classification", bootstrap=bootstrap, settings=settings)

    def _check(self, targets: NDArray[Any]) -> None:
        if targets.ndim > 1:
            raise DataError(f"{self._data.folder / Y_FILE} must have one column of labels, and has {targets.shape[1]}")

    def _predicted(self, estimator: Any, rows: NDArray[np.float64]) -> dict[str, Any]:
        classes = np.asarray(estimator.classes_)
        if not len(rows):
            return {"y_pred_rows": [], "classes": classes.tolist(), "y_proba_rows": []}
        labels = np.asarray(estimator.predict(rows))
        if hasattr(estimator, "predict_proba"):
            probabilities = np.asarray(estimator.predict_proba(rows), np.float64)
        else:
            probabilities = (labels[:, None] == classes[None, :]).astype(np.float64)
        return {"y_pred_rows": sendable(labels), "classes": classes.tolist(), "y_proba_rows": sendable(probabilities)}
