"""The learning rates of scikit-learn's SGD estimators, for steps along a gradient over all rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout, SparseRows
from chimera.models.linear_estimator import loss_of
from chimera.models.model import Task

_SMALLEST = 1e-6  # an adaptive rate ends below this, as scikit-learn's does


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """How long each step is; the first has t = 1.

    Attributes
    ----------
    kind : ``constant``: eta0; ``invscaling``: eta0 / t^power_t; ``optimal``: 1 / (alpha (t0 + t)), as Leon Bottou proposed;
        ``adaptive``: eta0, and a fifth of it each time that the gradient has not become shorter, by the part ``tol``, within
        ``patience`` steps.
    t0 : of ``optimal``.
    """

    kind: str
    eta0: float
    power_t: float = 0.25
    alpha: float = 1e-4
    t0: float = 0.0
    tol: float = 1e-3
    patience: int = 5

    @classmethod
    def of(cls, estimator: Any) -> LearningRate:
        """Return that of an `SGDRegressor` or `SGDClassifier`.

        Raises
        ------
        ConfigurationError : it is none that can be followed here.
        """
        kind, alpha = estimator.learning_rate, float(estimator.alpha)
        if kind not in ("constant", "optimal", "invscaling", "adaptive"):
            raise ConfigurationError(
                f"learning_rate={kind!r} follows no gradient: choose constant, optimal, invscaling or adaptive"
            )
        if kind == "optimal" and not alpha > 0:
            raise ConfigurationError("learning_rate='optimal' needs alpha above 0")
        if kind != "optimal" and not estimator.eta0 > 0:
            raise ConfigurationError(f"learning_rate={kind!r} needs eta0 above 0, not {estimator.eta0!r}")
        t0 = 0.0
        if kind == "optimal":
            typical = math.sqrt(1.0 / math.sqrt(alpha))
            task: Task = "classification" if hasattr(estimator, "class_weight") else "regression"
            _, slope = loss_of(estimator, task)(np.full((1, 1), -typical), np.ones((1, 1)))
            t0 = 1.0 / (alpha * typical / max(1.0, float(slope[0, 0])))
        tol, patience = estimator.tol, estimator.n_iter_no_change
        return cls(
            kind=kind,
            eta0=float(estimator.eta0),
            power_t=float(estimator.power_t),
            alpha=alpha,
            t0=t0,
            tol=0.0 if tol is None else float(tol),
            patience=int(patience),
        )

    def options(self) -> frozenset[str]:
        """Return the names of the estimator's options that it follows."""
        eta0 = {"learning_rate", "eta0"}
        every = {
            "constant": eta0,
            "invscaling": eta0 | {"power_t"},
            "optimal": {"learning_rate", "alpha", "loss"},
            "adaptive": eta0 | {"tol", "n_iter_no_change"},
        }
        return frozenset(every[self.kind])

    def stepper(self, flat: Flat) -> Steps:
        """Return what steps ``flat`` in place."""
        return Steps(self, flat)


class Steps:
    """Steps one flat vector in place.

    Attributes
    ----------
    over : whether an adaptive rate has become too small to go on.
    """

    def __init__(self, rate: LearningRate, flat: Flat) -> None:
        self._rate, self._flat = rate, flat
        self._t, self._eta = 0, rate.eta0
        self._shortest, self._in_vain = math.inf, 0
        self.over = False

    def step(self, gradient: Flat, number: int) -> None:  # noqa: ARG002 - it counts by itself, as scikit-learn does
        """Take one step with ``gradient``, shape (P,)."""
        self._t += 1
        self._flat -= self._flat.dtype.type(self._next(gradient)) * gradient

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take one step with a gradient that is zero in all other rows."""
        self.step(layout.filled(gradient), number)

    def curvature(self) -> None:
        """Return nothing: it is plain SGD."""

    def _next(self, gradient: Flat) -> float:
        rate, t = self._rate, self._t
        if rate.kind == "invscaling":
            return rate.eta0 / math.pow(t, rate.power_t)
        if rate.kind == "optimal":
            return 1.0 / (rate.alpha * (rate.t0 + t))
        if rate.kind == "adaptive":
            length = float(np.linalg.norm(gradient))
            self._in_vain = self._in_vain + 1 if length > self._shortest * (1 - rate.tol) else 0
            self._shortest = min(self._shortest, length)
            if self._in_vain >= rate.patience:
                self._eta, self._in_vain = self._eta / 5, 0
                self.over = self._eta < _SMALLEST
            return self._eta
        return rate.eta0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that it remembers, as arrays."""
        return {"t": np.array([self._t, self._eta, self._shortest, self._in_vain])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        t, self._eta, self._shortest, in_vain = (float(value) for value in state["t"])
        self._t, self._in_vain = int(t), int(in_vain)
