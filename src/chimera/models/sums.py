"""Sums of an evaluation. The merged sums of N parts of a test set give the metrics of the whole set."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.core.errors import DataError

MEAN = "_mean_of_nodes"
"""End of the name of a metric that is a mean over parts."""
MAX_ROWS = 1 << 53
PackedSums: TypeAlias = Mapping[str, Sequence[float]]
"""The sums of the loss and of each metric as plain numbers, by name."""


class Sums:
    """The sum of the loss over rows, and the accumulators of metrics.

    Parameters
    ----------
    metrics : a new accumulator of each metric by name.
    by_default : the metrics are the default: those that do not fit the outputs are left out.

    Attributes
    ----------
    total, rows : sum of the loss, and number of rows; the sum is NaN if a part had no loss.
    known : names of the metrics.
    """

    def __init__(self, metrics: Mapping[str, Any], *, by_default: bool) -> None:
        self.metrics, self.by_default, self.known = dict(metrics), by_default, frozenset(metrics)
        self.total, self.rows, self._has_loss = 0.0, 0, True

    def unmerged(self) -> list[str]:
        """Return the names of metrics that cannot be computed from sums, such as ``auroc``."""
        return [name for name, metric in self.metrics.items() if not hasattr(metric, "add_sums")]

    def average(self, names: Collection[str]) -> None:
        """Merge these metrics, which do not follow from sums, as the mean over parts weighted by their rows."""
        for name in set(self.unmerged()).intersection(names):
            self.metrics[name] = MeanOfParts()

    def figures(self) -> dict[str, float]:
        """Return the mean loss over all rows, and the metrics, except those that a part lacked.

        The name of a metric that is a mean over parts ends in `MEAN`; without any value of a part, it is left out.
        """
        found = {"loss": self.total / self.rows} if self._has_loss else {}
        for name, metric in self.metrics.items():
            if not isinstance(metric, MeanOfParts):
                found[name] = metric.result()
            elif metric.rows:
                found[name + MEAN] = metric.total / metric.rows
        return found

    def packed(self, averaged: Collection[str] = ()) -> dict[str, tuple[float, ...]]:
        """Return the sums as plain numbers; of metrics in ``averaged`` that do not follow from sums, the value of this part."""
        found: dict[str, tuple[float, ...]] = {"loss": (self.total, float(self.rows))}
        for name, metric in self.metrics.items():
            if hasattr(metric, "sums"):
                found[name] = tuple(metric.sums().tolist())
            elif name in averaged:
                value = _value(metric)
                found[name] = (0.0, 0.0) if math.isnan(value) else (value * self.rows, float(self.rows))
        return found

    def add(self, packed: PackedSums) -> None:
        """Add the sums of other rows. `figures` omits the metrics that they lack.

        Raises
        ------
        DataError : the sums are of other metrics, or have another form.
        """
        if unknown := sorted(set(packed) - {"loss", *self.known}):
            raise DataError(f"the sums of an evaluation have other metrics: {', '.join(unknown)[:200]}")
        self.metrics = {name: metric for name, metric in self.metrics.items() if name in packed}
        self._has_loss = self._has_loss and "loss" in packed
        try:
            total, rows = packed.get("loss", (math.nan, 0))
            self.total, self.rows = self.total + float(total), self.rows + int(rows)
            for name, metric in self.metrics.items():
                metric.add_sums(_numbers(packed[name]))
            if "loss" in packed and not 0 < rows < MAX_ROWS:
                raise ValueError(f"they are of {rows} rows")
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the sums of an evaluation have another form: {error}") from error


class MeanOfParts:
    """The mean of a metric over parts of a test set, weighted by their rows. This mean is not the metric of all rows."""

    def __init__(self) -> None:
        self.total = self.rows = 0.0

    def add_sums(self, sums: NDArray[np.float64]) -> None:
        """Add the value of a part times its rows, and its rows; both are 0 if the part has no value."""
        total, rows = sums.tolist()
        if not math.isfinite(total) or not 0 <= rows < MAX_ROWS:
            raise ValueError(f"they are of {rows} rows")
        self.total, self.rows = self.total + total, self.rows + rows


class MergedEvaluation:
    """The part of a `Model` that evaluates a test set whose parts are at several places."""

    def new_sums(self) -> Sums:
        """Return sums of no rows."""
        raise NotImplementedError

    def sums_of(self, batch: Batch) -> Sums:
        """Return the sums over a data set."""
        raise NotImplementedError

    def figures_of(self, sums: Sums) -> dict[str, float]:
        """Return loss and metrics of sums."""
        return sums.figures()

    def merged(self, parts: Iterable[PackedSums], averaged: Collection[str] = ()) -> dict[str, float]:
        """Return loss and metrics over all rows of the parts: those of `evaluate` on all these rows.

        Metrics in ``averaged`` that do not follow from sums are means over the parts.

        Raises
        ------
        DataError : the sums of a part have another form, or are of no rows.
        """
        sums = self.new_sums()
        sums.average(averaged)
        for part in parts:
            sums.add(part)
        return self.figures_of(sums)


def accumulators(factories: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return a new accumulator of each metric by name."""
    return {name: make() for name, make in factories.items()}


def _value(metric: Any) -> float:
    """Return the value of a metric; NaN if the rows have none, such as AUROC of rows of one class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns that the metric is not defined
        try:
            value = float(metric.result())
        except ValueError:
            return math.nan
    return value if math.isfinite(value) else math.nan


def _numbers(values: Sequence[float]) -> NDArray[np.float64]:
    numbers = np.array(values, np.float64)
    if numbers.ndim != 1:
        raise ValueError("they are no list of numbers")
    return numbers
