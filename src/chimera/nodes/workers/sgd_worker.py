"""A worker that computes the exact gradient of a linear model's objective on its own rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.models.construction import first_line
from chimera.models.linear_estimator import has_exact_gradient
from chimera.models.sklearn_model import SklearnModel
from chimera.nodes.settings import Settings
from chimera.nodes.workers.gradient_worker import GradientWorker, Problem, float32_rows
from chimera.nodes.workers.training_data import Data

ModelType = Literal["regressor", "classifier"]


class SGDWorker(GradientWorker):
    """Answers coefficients and intercepts with the gradient that `SGDRegressor` or `SGDClassifier` would follow.

    Parameters
    ----------
    model_type : ``"regressor"`` or ``"classifier"``.
    settings : of the node; by default as they are now in the environment and in `chimera.toml`.
    sgd_options : those of scikit-learn's estimator. What is computed here depends on ``loss``, ``penalty``, ``alpha``,
        ``l1_ratio``, ``epsilon``, ``fit_intercept`` and ``class_weight``; the others are the master's.

    Raises
    ------
    ConfigurationError : another model type, an option that the estimator does not take, or a setting.
    """

    def __init__(self, model_type: ModelType, *, settings: Settings | None = None, **sgd_options: Any) -> None:
        self._type, self._options = _estimator_type(model_type), sgd_options
        estimator = self._estimator()
        if not has_exact_gradient(estimator):
            raise ConfigurationError(
                f"learning_rate={sgd_options['learning_rate']!r} follows no gradient: choose another"
            )
        if not sgd_options.get("class_weight"):  # whose labels are those of the data
            SklearnModel(estimator, classes=[0, 1], n_features=1)  # scikit-learn looks at the values only when it fits
        super().__init__("regression" if model_type == "regressor" else "classification", settings)

    def _estimator(self) -> Any:
        try:
            return self._type(**self._options)
        except TypeError as error:
            raise ConfigurationError(f"{self._type.__name__}: {first_line(error)}") from error

    def make_problem(self, data: Data, classes: NDArray[Any] | None) -> Problem:
        """Return the linear problem on these data; labels are numbered, unless they have weights of their own."""
        width, outputs, labels, targets = data.X.shape[1], 1, classes, data.y
        if classes is not None:
            if len(classes) < 2:
                only = classes[0].item()
                raise DataError(
                    f"{self._data.folder} has rows of one class only, {only!r}: send all of them as 'classes'"
                )
            outputs = 1 if len(classes) == 2 else len(classes)
            if not self._options.get("class_weight"):
                labels, targets = np.arange(len(classes)), np.searchsorted(classes, data.y)
        else:
            targets = data.y.astype(np.float32)
        model = SklearnModel(self._estimator(), classes=labels, n_features=width)
        return Problem(model, float32_rows(data), targets, data.columns, classes, (outputs, width), outputs)


def _estimator_type(model_type: str) -> Any:
    from sklearn.linear_model import SGDClassifier, SGDRegressor

    types = {"regressor": SGDRegressor, "classifier": SGDClassifier}
    if model_type not in types:
        raise ConfigurationError(f"model_type must be 'regressor' or 'classifier', not {model_type!r}")
    return types[model_type]
