"""A worker around any scikit-learn regressor."""

from __future__ import annotations

from typing import Any

from chimera.nodes.settings import Settings
from chimera.nodes.workers.estimator_worker import EstimatorWorker


class RegressionWorker(EstimatorWorker):
    """Fits a regressor on its own rows; answers with values, one a row, or a list of them where ``y`` has several columns.

    Parameters
    ----------
    regressor : any of scikit-learn's kind.
    bootstrap : fit on as many rows drawn with replacement from its own, by a seed that is made of the worker's name.
    settings : of the node; by default as they are now in the environment and in `chimera.toml`.

    Raises
    ------
    ConfigurationError : it is no regressor, or a setting cannot be used.
    """

    def __init__(self, regressor: Any, bootstrap: bool = False, *, settings: Settings | None = None) -> None:
        super().__init__(regressor, "regression", bootstrap=bootstrap, settings=settings)
