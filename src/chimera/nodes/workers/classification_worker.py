"""A worker with a scikit-learn classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.nodes.settings import Settings
from chimera.nodes.table import Y_FILE
from chimera.nodes.workers.estimator_worker import EstimatorWorker, to_serializable


class ClassificationWorker(EstimatorWorker):
    """Fits a classifier to its own rows; answers with labels, classes and probabilities.

    Parameters
    ----------
    classifier : any scikit-learn classifier. Without ``predict_proba``, the predicted class has probability 1.
    bootstrap : fit to a bootstrap sample of the worker's rows, with a seed from the worker's name.
    settings : settings of the node; default: from the environment and `chimera.toml`.

    Raises
    ------
    ConfigurationError : ``classifier`` is not a classifier, or a setting is invalid.
    """

    def __init__(self, classifier: Any, bootstrap: bool = False, *, settings: Settings | None = None) -> None:
        super().__init__(classifier, "classification", bootstrap=bootstrap, settings=settings)

    def _check(self, targets: NDArray[Any]) -> None:
        if targets.ndim > 1:
            raise DataError(f"{self._data.folder / Y_FILE} must have one column of labels, not {targets.shape[1]}")

    def _predicted(self, estimator: Any, rows: NDArray[np.float64]) -> dict[str, Any]:
        classes = np.asarray(estimator.classes_)
        if not len(rows):
            return {"y_pred_rows": [], "classes": classes.tolist(), "y_proba_rows": []}
        labels = np.asarray(estimator.predict(rows))
        if hasattr(estimator, "predict_proba"):
            probabilities = np.asarray(estimator.predict_proba(rows), np.float64)
        else:
            probabilities = (labels[:, None] == classes[None, :]).astype(np.float64)
        return {
            "y_pred_rows": to_serializable(labels),
            "classes": classes.tolist(),
            "y_proba_rows": to_serializable(probabilities),
        }
