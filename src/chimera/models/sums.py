"""Sums of an evaluation, which are merged with those of other rows: of N parts of a test set, they give the whole's metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch
from chimera.core.errors import DataError

MOST_ROWS = 1 << 53
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
    total, rows : sum of the loss, and number of rows; the sum is NaN if a part was without it.
    known : names of the metrics.
    """

    def __init__(self, metrics: Mapping[str, Any], *, by_default: bool) -> None:
        self.metrics, self.by_default, self.known = dict(metrics), by_default, frozenset(metrics)
        self.total, self.rows, self._has_loss = 0.0, 0, True

    def unmerged(self) -> list[str]:
        """Return the names of metrics that cannot be computed from sums, such as ``auroc``."""
        return [name for name, metric in self.metrics.items() if not hasattr(metric, "add_sums")]

    def figures(self) -> dict[str, float]:
        """Return the mean loss over all rows, and the metrics; without what a part was without."""
        found = {"loss": self.total / self.rows} if self._has_loss else {}
        return found | {name: metric.result() for name, metric in self.metrics.items()}

    def packed(self) -> dict[str, tuple[float, ...]]:
        """Return the sums as plain numbers."""
        found = {name: tuple(metric.sums().tolist()) for name, metric in self.metrics.items()}
        return {"loss": (self.total, float(self.rows)), **found}

    def add(self, packed: PackedSums) -> None:
        """Add the sums of other rows. What they are without is left out of the figures.

        Raises
        ------
        DataError : the sums are of other metrics, or have another form.
        """
        if strange := sorted(set(packed) - {"loss", *self.known}):
            raise DataError(f"the sums of an evaluation have other metrics: {', '.join(strange)[:200]}")
        self.metrics = {name: metric for name, metric in self.metrics.items() if name in packed}
        self._has_loss = self._has_loss and "loss" in packed
        try:
            total, rows = packed.get("loss", (math.nan, 0))
            self.total, self.rows = self.total + float(total), self.rows + int(rows)
            for name, metric in self.metrics.items():
                metric.add_sums(_numbers(packed[name]))
            if "loss" in packed and not 0 < rows < MOST_ROWS:
                raise ValueError(f"they are of {rows} rows")
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the sums of an evaluation have another form: {error}") from error


class MergedEvaluation:
    """The part of a `Model` that evaluates parts of a test set which it does not have at one place."""

    def new_sums(self) -> Sums:
        """Return sums of no rows."""
        raise NotImplementedError

    def sums_of(self, batch: Batch) -> Sums:
        """Return the sums over a data set."""
        raise NotImplementedError

    def figures_of(self, sums: Sums) -> dict[str, float]:
        """Return loss and metrics of sums."""
        return sums.figures()

    def merged(self, parts: Iterable[PackedSums]) -> dict[str, float]:
        """Return loss and metrics over all rows of the parts: those of `evaluate` on all these rows.

        Raises
        ------
        DataError : the sums of a part have another form, or are of no rows.
        """
        sums = self.new_sums()
        for part in parts:
            sums.add(part)
        return self.figures_of(sums)


def accumulators(factories: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return a new accumulator of each metric by name."""
    return {name: make() for name, make in factories.items()}


def _numbers(values: Sequence[float]) -> NDArray[np.float64]:
    numbers = np.array(values, np.float64)
    if numbers.ndim != 1:
        raise ValueError("they are no list of numbers")
    return numbers
