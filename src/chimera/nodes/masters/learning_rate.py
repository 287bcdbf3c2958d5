"""The learning rates of scikit-learn's SGD estimators, for full-batch gradient steps."""

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

_MIN_RATE = 1e-6  # the descent stops when an adaptive rate falls below this, as in scikit-learn


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """A schedule of the learning rate over steps t = 1, 2, ...

    Attributes
    ----------
    kind : ``constant``: eta0. ``invscaling``: eta0 / t^power_t. ``optimal``: 1 / (alpha (t0 + t)), as proposed by Leon Bottou.
        ``adaptive``: eta0, divided by 5 whenever the norm of the gradient has not decreased by the fraction ``tol`` within
        ``patience`` steps.
    t0 : offset of ``optimal``.
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
        """Return the learning rate of an `SGDRegressor` or `SGDClassifier`.

        Raises
        ------
        ConfigurationError : the learning rate is not supported.
        """
        kind, alpha = estimator.learning_rate, float(estimator.alpha)
        if kind not in ("constant", "optimal", "invscaling", "adaptive"):
            raise ConfigurationError(
                f"learning_rate={kind!r} is not a schedule of gradient steps: choose constant, optimal, invscaling or adaptive"
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
        """Return the names of the estimator's options that have an effect."""
        eta0 = {"learning_rate", "eta0"}
        every = {
            "constant": eta0,
            "invscaling": eta0 | {"power_t"},
            "optimal": {"learning_rate", "alpha", "loss"},
            "adaptive": eta0 | {"tol", "n_iter_no_change"},
        }
        return frozenset(every[self.kind])

    def stepper(self, flat: Flat) -> Steps:
        """Return a stepper that updates ``flat`` in place."""
        return Steps(self, flat)


class Steps:
    """Steps that update one flat vector in place.

    Attributes
    ----------
    over : whether an adaptive rate has become too small to continue.
    """

    def __init__(self, rate: LearningRate, flat: Flat) -> None:
        self._rate, self._flat = rate, flat
        self._t, self._eta = 0, rate.eta0
        self._shortest, self._bad_steps = math.inf, 0
        self.over = False

    def step(self, gradient: Flat, number: int) -> None:  # noqa: ARG002 - the object counts steps itself, as scikit-learn does
        """Take one step with ``gradient``, shape (P,)."""
        self._t += 1
        self._flat -= self._flat.dtype.type(self._next(gradient)) * gradient

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take one step with a gradient that is zero in all other rows."""
        self.step(layout.filled(gradient), number)

    def curvature(self) -> None:
        """Return None: plain SGD has no curvature estimate."""

    def _next(self, gradient: Flat) -> float:
        rate, t = self._rate, self._t
        if rate.kind == "invscaling":
            return rate.eta0 / math.pow(t, rate.power_t)
        if rate.kind == "optimal":
            return 1.0 / (rate.alpha * (rate.t0 + t))
        if rate.kind == "adaptive":
            length = float(np.linalg.norm(gradient))
            self._bad_steps = self._bad_steps + 1 if length > self._shortest * (1 - rate.tol) else 0
            self._shortest = min(self._shortest, length)
            if self._bad_steps >= rate.patience:
                self._eta, self._bad_steps = self._eta / 5, 0
                self.over = self._eta < _MIN_RATE
            return self._eta
        return rate.eta0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return {"t": np.array([self._t, self._eta, self._shortest, self._bad_steps])}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        t, self._eta, self._shortest, bad_steps = (float(value) for value in state["t"])
        self._t, self._bad_steps = int(t), int(bad_steps)
