"""Properties of a scikit-learn estimator: its task, loss, penalty and class weights."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chimera.core.errors import ConfigurationError
from chimera.models.linear_losses import CLASSIFICATION, REGRESSION, LinearLoss, Penalty
from chimera.models.model import Task


def estimator_task(estimator: Any) -> Task:
    """Return the task of an estimator.

    Raises
    ------
    ConfigurationError : the estimator cannot be trained on batches.
    """
    from sklearn.base import is_classifier, is_regressor

    name = type(estimator).__name__
    if not hasattr(estimator, "partial_fit"):
        raise ConfigurationError(
            f"{name} cannot learn from batches (it has no partial_fit); use SGDClassifier or SGDRegressor"
        )
    if not (is_classifier(estimator) or is_regressor(estimator)):
        raise ConfigurationError(f"{name} is neither a classifier nor a regressor")
    for option in ("average", "early_stopping"):
        if getattr(estimator, option, False):
            raise ConfigurationError(
                f"{name}({option}={getattr(estimator, option)}) cannot be trained here: leave it off"
            )
    if getattr(estimator, "class_weight", None) == "balanced":
        raise ConfigurationError(
            f"{name}(class_weight='balanced') needs all data at once: give the weights as a dictionary"
        )
    return "classification" if is_classifier(estimator) else "regression"


def start_at_zero(estimator: Any, task: Task, classes: ArrayLike | None, n_features: int | None) -> None:
    """Make the estimator create its attributes, by a ``partial_fit`` on zeros, and set its weights to zero.

    Raises
    ------
    ConfigurationError : the estimator is not linear or has invalid parameters, or ``classes`` or ``n_features`` is missing or
        invalid.
    """
    name = type(estimator).__name__
    if n_features is None or (task == "classification" and classes is None):
        needed = "n_features" if task == "regression" else "n_features and classes"
        raise ConfigurationError(f"{name} is not fitted: SklearnModel needs {needed}")
    labels = np.asarray(classes if task == "classification" else [0.0])
    if task == "classification" and (len(labels) < 2 or not np.array_equal(labels, np.unique(labels))):
        raise ConfigurationError(f"classes must be two or more, sorted, without repetition; given: {labels.tolist()}")
    known = "classes" in inspect.signature(estimator.partial_fit).parameters
    options = {"classes": labels} if task == "classification" and known else {}
    try:
        estimator.partial_fit(np.zeros((len(labels), n_features), np.float32), labels, **options)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{name} cannot be trained with these parameters: {reason}") from error
    if not (hasattr(estimator, "coef_") and hasattr(estimator, "intercept_")):
        raise ConfigurationError(f"{name} is not linear: it has no coef_ and intercept_ after partial_fit")
    estimator.coef_, estimator.intercept_ = np.zeros_like(estimator.coef_), np.zeros_like(estimator.intercept_)
    if hasattr(estimator, "t_"):
        estimator.t_ = 1.0


def has_exact_gradient(estimator: Any) -> bool:
    """Return whether the estimator's ``partial_fit`` is plain SGD on its loss and penalty."""
    from sklearn.linear_model import SGDClassifier, SGDRegressor

    passive_aggressive = getattr(estimator, "learning_rate", None) in ("pa1", "pa2")
    return isinstance(estimator, SGDClassifier | SGDRegressor) and not passive_aggressive


def loss_of(estimator: Any, task: Task) -> LinearLoss:
    """Return the estimator's loss; if its name is unknown, hinge for a classifier and squared error for a regressor."""
    name = getattr(estimator, "loss", None)
    if task == "classification" and name in CLASSIFICATION:
        return CLASSIFICATION[name]
    if name in REGRESSION:
        loss = REGRESSION[name]
        return loss if name == "squared_error" else partial(loss, epsilon=estimator.epsilon)
    return CLASSIFICATION["hinge"] if task == "classification" else REGRESSION["squared_error"]


def penalty_of(parameters: dict[str, Any]) -> Penalty:
    """Return the penalty that an estimator's parameters define; a zero penalty if they define none."""
    kind = parameters.get("penalty")
    return Penalty.of(kind, parameters.get("alpha", 0.0), parameters.get("l1_ratio") or 0.0) if kind else Penalty()


def class_weights_of(weights: Any, classes: Any) -> NDArray[np.float32] | None:
    """Return the weight of a sample of each class in each one-versus-rest problem, shape (classes, outputs)."""
    if weights is None or classes is None:
        return None
    own = np.array([weights.get(label, 1.0) for label in classes.tolist()], np.float32)
    return own[:, None] if len(own) == 2 else np.where(np.eye(len(own)) == 1, own[None, :], 1).astype(np.float32)
