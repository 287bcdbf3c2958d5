"""The losses and penalties of scikit-learn's SGD estimators, with their exact derivatives, in NumPy.

A loss takes scores p, shape (n, k), and targets y of the same shape (-1 or 1 for classification). It returns the loss
and its derivative with respect to p, each of shape (n, k). Where a loss has a kink, the derivative is that of
scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

Array: TypeAlias = NDArray[Any]
LinearLoss: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]


def squared_error(p: Array, y: Array) -> tuple[Array, Array]:
    """``(p - y)^2 / 2``."""
    residual = p - y
    return residual * residual * 0.5, residual


def huber(p: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    """``r^2 / 2`` up to ``|r| = epsilon``, ``epsilon |r| - epsilon^2 / 2`` beyond."""
    residual = p - y
    clipped = np.clip(residual, -epsilon, epsilon)
    return clipped * (residual - 0.5 * clipped), clipped


def epsilon_insensitive(p: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    """``max(0, |r| - epsilon)``."""
    residual = p - y
    beyond = np.abs(residual) - epsilon
    return np.maximum(beyond, 0), np.sign(residual) * (beyond > 0)


def squared_epsilon_insensitive(p: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    """``max(0, |r| - epsilon)^2``."""
    residual = p - y
    beyond = np.maximum(np.abs(residual) - epsilon, 0)
    return beyond * beyond, 2 * beyond * np.sign(residual)


def hinge(p: Array, y: Array) -> tuple[Array, Array]:
    """``max(0, 1 - y p)``, a support vector machine."""
    margin = 1 - y * p
    return np.maximum(margin, 0), -y * (margin >= 0)


def perceptron(p: Array, y: Array) -> tuple[Array, Array]:
    """``max(0, -y p)``."""
    margin = -y * p
    return np.maximum(margin, 0), -y * (margin >= 0)


def squared_hinge(p: Array, y: Array) -> tuple[Array, Array]:
    """``max(0, 1 - y p)^2``."""
    margin = np.maximum(1 - y * p, 0)
    return margin * margin, -2 * y * margin


def modified_huber(p: Array, y: Array) -> tuple[Array, Array]:
    """``max(0, 1 - y p)^2``, and ``-4 y p`` below ``y p = -1``."""
    z = y * p
    margin = np.clip(1 - z, 0, 2)
    return np.where(z < -1, -4 * z, margin * margin), -2 * y * margin


def log_loss(p: Array, y: Array) -> tuple[Array, Array]:
    """``log(1 + exp(-y p))``, logistic regression; exact for scores of any size."""
    z = y * p
    small = np.exp(-np.abs(z))  # never overflows
    return np.log1p(small) - np.minimum(z, 0), -y * np.where(z > 0, small, 1) / (1 + small)


REGRESSION: dict[str, Callable[..., tuple[Array, Array]]] = {
    "epsilon_insensitive": epsilon_insensitive,
    "huber": huber,
    "squared_epsilon_insensitive": squared_epsilon_insensitive,
    "squared_error": squared_error,
}
CLASSIFICATION: dict[str, LinearLoss] = {
    "hinge": hinge,
    "log_loss": log_loss,
    "modified_huber": modified_huber,
    "perceptron": perceptron,
    "squared_hinge": squared_hinge,
}


@dataclass(frozen=True)
class Penalty:
    """``l2 / 2 * |w|^2 + l1 * |w|_1`` on the coefficients, not on the intercept; the derivative of |w| at 0 is 0."""

    l1: float = 0.0
    l2: float = 0.0

    @classmethod
    def of(cls, kind: str | None, alpha: float, l1_ratio: float) -> Penalty:
        """Return the penalty that scikit-learn's parameters ``penalty``, ``alpha`` and ``l1_ratio`` define."""
        ratios = {None: (0.0, 0.0), "l1": (1.0, 0.0), "l2": (0.0, 1.0), "elasticnet": (l1_ratio, 1.0 - l1_ratio)}
        if kind not in ratios:
            raise ConfigurationError(f"unknown penalty {kind!r}; known: elasticnet, l1, l2, none")
        l1, l2 = ratios[kind]
        return cls(alpha * l1, alpha * l2)

    def value(self, weights: Array) -> float:
        """Return the penalty of the weights."""
        value = 0.0
        if self.l2:
            flat = weights.reshape(-1)
            value += 0.5 * self.l2 * float(flat @ flat)
        if self.l1:
            value += self.l1 * float(np.abs(weights).sum())
        return value

    def add_gradient(self, weights: Array, gradient: Array) -> None:
        """Add the penalty's gradient to ``gradient`` in place."""
        if self.l2:
            gradient += self.l2 * weights
        if self.l1:
            gradient += self.l1 * np.sign(weights)
