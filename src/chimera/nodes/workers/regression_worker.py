"""A worker with a scikit-learn regressor."""

from __future__ import annotations

from typing import Any

from chimera.nodes.settings import Settings
from chimera.nodes.workers.estimator_worker import EstimatorWorker


class RegressionWorker(EstimatorWorker):
    """Fits a regressor to its own rows; answers with one value per row, or a list of values if ``y`` has several columns.

    Parameters
    ----------
    regressor : any scikit-learn regressor.
    bootstrap : fit to a bootstrap sample of the worker's rows, with a seed from the worker's name.
    settings : settings of the node; default: from the environment and `chimera.toml`.

    Raises
    ------
    ConfigurationError : ``regressor`` is not a regressor, or a setting is invalid.
    """

    def __init__(self, regressor: Any, bootstrap: bool = False, *, settings: Settings | None = None) -> None:
        super().__init__(regressor, "regression", bootstrap=bootstrap, settings=settings)
