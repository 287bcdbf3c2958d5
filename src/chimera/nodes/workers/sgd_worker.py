"""A worker with a linear model: it returns the step of one pass over its rows, or the exact gradient of the objective."""

from __future__ import annotations

import copy
import zlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.models.instantiation import first_line
from chimera.models.linear_estimator import estimator_task, has_exact_gradient
from chimera.models.sklearn_model import SklearnModel
from chimera.nodes.settings import Settings
from chimera.nodes.workers.gradient_worker import GradientWorker
from chimera.nodes.workers.local_epoch import LocalEpoch
from chimera.nodes.workers.problem import LocalUpdate, Problem, float32_rows
from chimera.nodes.workers.training_data import Data

ModelType = Literal["regressor", "classifier"]
_STEP_OPTIONS = ("learning_rate", "eta0", "power_t", "shuffle", "random_state")
"""Options on which the exact gradient does not depend."""


class SGDWorker(GradientWorker):
    """Receives coefficients and intercepts, and returns the step of one ``partial_fit`` over its own rows.

    The answer is the given coefficients minus those after the pass, in float64; the master subtracts the mean of all answers.
    The worker's own options, such as ``eta0``, ``learning_rate`` and ``penalty``, apply as in scikit-learn's ``partial_fit``.

    Parameters
    ----------
    model_type : ``"regressor"`` or ``"classifier"``.
    exact_gradient : return the exact gradient of the estimator's objective over all own rows instead, in float32. It depends
        on ``loss``, ``penalty``, ``alpha``, ``l1_ratio``, ``epsilon``, ``fit_intercept`` and ``class_weight``. The master takes
        the step, with its own options.
    settings : settings of the node; default: from the environment and `chimera.toml`.
    sgd_options : options of scikit-learn's `SGDRegressor` or `SGDClassifier`. Without ``random_state``, rows are shuffled with
        a seed from the worker's name and the number of the step.

    Raises
    ------
    ConfigurationError : the model type, an option or a setting is invalid, or an option has no effect with
        ``exact_gradient``.
    """

    def __init__(
        self,
        model_type: ModelType,
        *,
        exact_gradient: bool = False,
        settings: Settings | None = None,
        **sgd_options: Any,
    ) -> None:
        self._type, self._options, self._exact = _estimator_type(model_type), sgd_options, bool(exact_gradient)
        estimator = self._estimator()
        estimator_task(estimator)
        if self._exact:
            self._check_exact(estimator)
        if not sgd_options.get("class_weight"):  # its labels are known only with the data
            SklearnModel(estimator, classes=[0, 1], n_features=1)  # scikit-learn validates options only in a fit
        super().__init__("regression" if model_type == "regressor" else "classification", settings)

    @property
    def exact_gradient(self) -> bool:
        """See `GradientWorker.exact_gradient`."""
        return self._exact

    def max_classes(self, weights: int, width: int) -> int:
        """See `GradientWorker.max_classes`."""
        return weights // width

    def _check_exact(self, estimator: Any) -> None:
        if not has_exact_gradient(estimator):
            raise ConfigurationError(
                f"learning_rate={estimator.learning_rate!r} has no exact gradient: choose another, or set exact_gradient=False"
            )
        if useless := [name for name in _STEP_OPTIONS if name in self._options]:
            raise ConfigurationError(
                f"{useless[0]} has no effect on a worker with exact_gradient=True, because the master takes the steps: give it "
                "to the master"
            )

    def _estimator(self) -> Any:
        try:
            return self._type(**copy.deepcopy(self._options))
        except TypeError as error:
            raise ConfigurationError(f"{self._type.__name__}: {first_line(error)}") from error

    def make_local_update(self, data: Data, classes: NDArray[Any] | None) -> LocalUpdate:
        """Return the local update with these data: one pass for each step, or the exact gradient."""
        if self._exact:
            return self.make_problem(data, classes)
        labels, targets, _ = self._labelled(data, classes)
        return LocalEpoch(self._estimator, data.X, targets, labels, zlib.crc32(self.name.encode()))

    def make_problem(self, data: Data, classes: NDArray[Any] | None) -> Problem:
        """Return the linear problem with these data."""
        labels, targets, outputs = self._labelled(data, classes)
        width = data.X.shape[1]
        if classes is None:
            targets = targets.astype(np.float32)
        model = SklearnModel(self._estimator(), classes=labels, n_features=width)
        return Problem(model, float32_rows(data), targets, data.columns, classes, (outputs, width), outputs)

    def _labelled(self, data: Data, classes: NDArray[Any] | None) -> tuple[NDArray[Any] | None, NDArray[Any], int]:
        """Return classes, targets and the number of outputs. Labels are numbered unless ``class_weight`` refers to them."""
        if classes is None:
            return None, data.y, 1
        if len(classes) < 2:
            only = classes[0].item()
            raise DataError(f"{self._data.folder} has rows of one class only, {only!r}: send all classes as 'classes'")
        outputs = 1 if len(classes) == 2 else len(classes)
        if self._options.get("class_weight"):
            return classes, data.y, outputs
        return np.arange(len(classes)), np.searchsorted(classes, data.y), outputs


def _estimator_type(model_type: str) -> Any:
    from sklearn.linear_model import SGDClassifier, SGDRegressor

    types = {"regressor": SGDRegressor, "classifier": SGDClassifier}
    if model_type not in types:
        raise ConfigurationError(f"model_type must be 'regressor' or 'classifier', not {model_type!r}")
    return types[model_type]
