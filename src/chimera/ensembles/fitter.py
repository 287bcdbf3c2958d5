"""The worker of an ensemble: an actor that has a part of the data, and fits estimators to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Fitted:
    """An estimator that was fitted, and what it says of rows that it has not seen.

    Attributes
    ----------
    estimator : the fitted one.
    left_out : numbers of rows of the worker's data that were not drawn, shape (k,); none if nobody asked for them.
    predictions : of those rows: probabilities, shape (k, c), or values, shape (k,).
    """

    estimator: Any
    left_out: Rows
    predictions: NDArray[Any]


class Fitter:
    """One worker.

    Parameters
    ----------
    inputs, targets : the data that all share, shapes (n, ...) and (n,).
    rows : which of them are this worker's; None for all.
    """

    hosted = True

    def __init__(self, inputs: NDArray[Any], targets: NDArray[Any], rows: Rows | None) -> None:
        self._inputs, self._targets = inputs, targets
        self._rows = np.arange(len(targets)) if rows is None else rows

    def fit(self, estimator: Any, seed: int, rows: Rows | None = None, weights: NDArray[Any] | None = None) -> Fitted:
        """Fit a copy to all own rows, or to ``rows`` of the whole data; ``weights`` are of what is fitted to."""
        ready = seeded(estimator, seed)
        taken = self._rows if rows is None else rows
        more = {} if weights is None else {"sample_weight": weights}
        ready.fit(self._inputs[taken], self._targets[taken], **more)
        return Fitted(ready, np.empty(0, np.intp), np.empty(0))

    def draw_and_fit(self, estimator: Any, seed: int, share: float, replace: bool, judge: str | None) -> Fitted:
        """Fit a copy to rows drawn from the own ones: ``share`` of them, with or without putting each back.

        A row that was drawn k times weighs k, where the estimator knows weights, and else is there k times. ``judge`` names the
        method that predicts those which were not drawn.
        """
        rng = np.random.default_rng(seed)
        count = max(round(share * len(self._rows)), 1)
        drawn = rng.integers(len(self._rows), size=count) if replace else rng.permutation(len(self._rows))[:count]
        if replace and has_fit_parameter(
            estimator, "sample_weight"
        ):  # rows that are there once take less time to fit to
            once, times = np.unique(drawn, return_counts=True)
            fitted = self.fit(estimator, seed, self._rows[once], times.astype(np.float64))
        else:
            fitted = self.fit(estimator, seed, self._rows[drawn])
        if judge is None:
            return fitted
        left_out = np.delete(self._rows, drawn)
        found = getattr(fitted.estimator, judge)(self._inputs[left_out]) if len(left_out) else np.empty(0)
        return Fitted(fitted.estimator, left_out, found)

    def predicted(self, estimator: Any, seed: int, train: Rows, test: Rows, method: str) -> NDArray[Any]:
        """Fit a copy to some rows of the whole data, and return what it says of others."""
        ready = self.fit(estimator, seed, train).estimator
        return np.asarray(getattr(ready, method)(self._inputs[test]))

    def grow(self, forest: Any, seed: int, trees: int, classes: int | None) -> Any:
        """Fit a forest of so many trees to the own rows, of ``classes`` classes though not all may occur here."""
        ready = seeded(forest, seed).set_params(n_estimators=trees)
        inputs, targets = self._inputs[self._rows], self._targets[self._rows]
        weights = np.ones(len(targets))
        if classes is not None:  # a row of weight 0 makes a class known, and is in no split
            inputs = np.concatenate([inputs, np.repeat(inputs[:1], classes, axis=0)])
            targets, weights = np.concatenate([targets, np.arange(classes)]), np.append(weights, np.zeros(classes))
        return ready.fit(inputs, targets, sample_weight=weights)


def seeded(estimator: Any, seed: int) -> Any:
    """Return a copy that is not fitted, whose random states, also those of its parts, come from a seed."""
    copy = clone(estimator)
    states = sorted(key for key in copy.get_params() if key == "random_state" or key.endswith("__random_state"))
    drawn = np.random.default_rng([seed, 1]).integers(2**31 - 1, size=len(states))
    return copy.set_params(**dict(zip(states, map(int, drawn), strict=True)))
