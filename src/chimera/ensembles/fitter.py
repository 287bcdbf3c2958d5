"""The worker of an ensemble: an actor that holds a part of the data and fits estimators to it."""

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
    """A fitted estimator, and its predictions for rows that it was not fitted to.

    Attributes
    ----------
    estimator : the fitted estimator.
    left_out : indices of the worker's rows that were not drawn, shape (k,); empty unless requested.
    predictions : predictions for these rows: probabilities, shape (k, c), or values, shape (k,).
    """

    estimator: Any
    left_out: Rows
    predictions: NDArray[Any]


class Fitter:
    """One worker.

    Parameters
    ----------
    inputs, targets : the whole data, shapes (n, ...) and (n,).
    rows : indices of this worker's rows; None: all rows.
    """

    hosted = True

    def __init__(self, inputs: NDArray[Any], targets: NDArray[Any], rows: Rows | None) -> None:
        self._inputs, self._targets = inputs, targets
        self._rows = np.arange(len(targets)) if rows is None else rows

    def fit(self, estimator: Any, seed: int, rows: Rows | None = None, weights: NDArray[Any] | None = None) -> Fitted:
        """Fit a copy to the worker's rows, or to ``rows`` of the whole data, with sample weights ``weights``."""
        ready = seeded(estimator, seed)
        taken = self._rows if rows is None else rows
        more = {} if weights is None else {"sample_weight": weights}
        ready.fit(self._inputs[taken], self._targets[taken], **more)
        return Fitted(ready, np.empty(0, np.intp), np.empty(0))

    def draw_and_fit(self, estimator: Any, seed: int, share: float, replace: bool, oob_method: str | None) -> Fitted:
        """Fit a copy to a random sample of the worker's rows.

        Parameters
        ----------
        share : size of the sample, as a fraction of the worker's rows.
        replace : whether to draw with replacement. A row that was drawn k times has sample weight k, or is repeated k times if
            the estimator takes no weights.
        oob_method : the estimator's method that predicts the rows that were not drawn; None: no predictions.
        """
        rng = np.random.default_rng(seed)
        count = max(round(share * len(self._rows)), 1)
        drawn = rng.integers(len(self._rows), size=count) if replace else rng.permutation(len(self._rows))[:count]
        if replace and has_fit_parameter(estimator, "sample_weight"):  # faster than repeated rows
            distinct, counts = np.unique(drawn, return_counts=True)
            fitted = self.fit(estimator, seed, self._rows[distinct], counts.astype(np.float64))
        else:
            fitted = self.fit(estimator, seed, self._rows[drawn])
        if oob_method is None:
            return fitted
        left_out = np.delete(self._rows, drawn)
        found = getattr(fitted.estimator, oob_method)(self._inputs[left_out]) if len(left_out) else np.empty(0)
        return Fitted(fitted.estimator, left_out, found)

    def predicted(self, estimator: Any, seed: int, train: Rows, test: Rows, method: str) -> NDArray[Any]:
        """Fit a copy to rows ``train`` of the whole data, and return its predictions for rows ``test``."""
        ready = self.fit(estimator, seed, train).estimator
        return np.asarray(getattr(ready, method)(self._inputs[test]))

    def grow(self, forest: Any, seed: int, trees: int, classes: int | None) -> Any:
        """Fit a forest of ``trees`` trees, with all ``classes``, to the worker's rows, which may lack some classes."""
        ready = seeded(forest, seed).set_params(n_estimators=trees)
        inputs, targets = self._inputs[self._rows], self._targets[self._rows]
        weights = np.ones(len(targets))
        if classes is not None:  # a row of weight 0 makes a class known without any effect on the splits
            inputs = np.concatenate([inputs, np.repeat(inputs[:1], classes, axis=0)])
            targets, weights = np.concatenate([targets, np.arange(classes)]), np.append(weights, np.zeros(classes))
        return ready.fit(inputs, targets, sample_weight=weights)


def seeded(estimator: Any, seed: int) -> Any:
    """Return an unfitted copy whose random states, including those of nested estimators, are derived from a seed."""
    copy = clone(estimator)
    states = sorted(key for key in copy.get_params() if key == "random_state" or key.endswith("__random_state"))
    drawn = np.random.default_rng([seed, 1]).integers(2**31 - 1, size=len(states))
    return copy.set_params(**dict(zip(states, map(int, drawn), strict=True)))
