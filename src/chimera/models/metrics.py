"""Metrics computed incrementally over pieces of a data set, so that the outputs of all rows are never in memory at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError, UnknownNameError
from chimera.core.registry import load_object
from chimera.models.batch_metrics import BatchMetric, MeanOfBatches, Perplexity, TorchMetric, number_of
from chimera.models.class_counts import ClassCounts

Array: TypeAlias = NDArray[Any]
MetricFunction: TypeAlias = Callable[[Array, Array], Any]
"""``metric(targets, predictions) -> number`` over a whole data set: the signature of scikit-learn's metrics."""
Metrics: TypeAlias = str | Sequence[str | MetricFunction] | Mapping[str, str | MetricFunction]
"""Names, functions and objects; the keys of a mapping name the results."""


class Metric(Protocol):
    """The accumulator of one metric; a new one is created for each evaluation.

    A metric that follows from sums over rows also has ``sums()``, which returns them, float64, shape (k,). Its
    ``add_sums(sums)`` adds those of other rows (see `chimera.models.sums`), and raises ValueError for another form.
    """

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:
        """Add a piece: raw outputs, predictions and targets, each of shape (n, ...)."""

    def result(self) -> float:
        """Return the metric over all pieces."""


def _classes(targets: Array, predictions: Array) -> Array:
    """Return targets as class indices in the shape of the predictions; rows of class probabilities become classes."""
    if targets.shape == predictions.shape:
        return targets
    if targets.ndim == predictions.ndim + 1 and targets.shape[1] > 1:
        return np.asarray(targets.argmax(1))
    return targets.reshape(predictions.shape)


class _Share:
    """Share of correct answers, from their number and that of all answers."""

    def __init__(self) -> None:
        self.right = self.count = 0

    def result(self) -> float:
        return self.right / self.count if self.count else 0.0

    def sums(self) -> Array:
        return np.array([self.right, self.count], np.float64)

    def add_sums(self, sums: Array) -> None:
        right, count = sums.tolist()
        self.right, self.count = self.right + int(right), self.count + int(count)


class Accuracy(_Share):
    """Share of correctly predicted classes; if rows have several labels, each counts, except those of -100."""

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: ARG002, D102
        wanted = _classes(targets, predictions)
        self.right += int(np.count_nonzero(predictions == wanted))
        self.count += int(np.count_nonzero(wanted != -100))


class TopAccuracy(_Share):
    """Share of rows whose class is among the ``k`` largest outputs; a tie counts as correct."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: D102
        if outputs.ndim < 2 or outputs.shape[1] < 2:
            raise ConfigurationError(f"the metric 'top-{self.k}-accuracy' needs one output a class")
        classes = np.expand_dims(_classes(targets, predictions), 1).astype(np.intp)
        larger = (outputs > np.take_along_axis(outputs, classes, 1)).sum(1)
        self.right += int(np.count_nonzero(larger < self.k))
        self.count += larger.size


class MeanError:
    """Mean of a power of the absolute error over rows and columns; with ``root``, the mean over columns of their roots."""

    def __init__(self, power: int, *, root: bool = False) -> None:
        self.power, self.root, self.count = power, root, 0
        self.total: Any = 0.0

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: ARG002, D102
        self.total = self.total + (np.abs(np.subtract(*_columns(predictions, targets))) ** self.power).sum(0)
        self.count += len(targets)

    def result(self) -> float:  # noqa: D102
        mean = self.total / self.count
        return float(np.mean(np.sqrt(mean) if self.root else mean))

    def sums(self) -> Array:  # noqa: D102
        return np.concatenate([[self.count], np.atleast_1d(self.total)])

    def add_sums(self, sums: Array) -> None:  # noqa: D102
        self.total, self.count = self.total + sums[1:], self.count + int(sums[0])


class R2:
    """Coefficient of determination, averaged over columns. Sums are merged as in Chan et al. 1983: stable for large means."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.spread: Any = 0.0
        self.residual: Any = 0.0

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: ARG002, D102
        predicted, true = _columns(predictions, targets)
        mean = true.mean(0)
        self._merge(len(true), mean, ((true - mean) ** 2).sum(0), ((true - predicted) ** 2).sum(0))

    def _merge(self, n: int, mean: Array, spread: Array, residual: Array) -> None:
        delta, total = mean - self.mean, self.count + n
        self.spread = self.spread + spread + delta**2 * (self.count * n / total)
        self.mean, self.count = self.mean + delta * (n / total), total
        self.residual = self.residual + residual

    def result(self) -> float:  # noqa: D102
        spread = np.where(self.spread == 0, 1, self.spread)
        constant = np.where(self.residual == 0, 1.0, 0.0)  # as scikit-learn defines it for targets without spread
        return float(np.mean(np.where(self.spread == 0, constant, 1 - self.residual / spread)))

    def sums(self) -> Array:  # noqa: D102
        return np.concatenate([[self.count], *np.atleast_2d(self.mean, self.spread, self.residual)], axis=None)

    def add_sums(self, sums: Array) -> None:  # noqa: D102
        if count := int(sums[0]):
            self._merge(count, *sums[1:].reshape(3, -1))


class FunctionMetric:
    """A metric function of the user, called once with all targets and predictions."""

    def __init__(self, function: MetricFunction) -> None:
        self.function = function
        self.pieces: list[tuple[Array, Array]] = []

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: ARG002, D102
        self.pieces.append((targets, predictions))

    def result(self) -> float:  # noqa: D102
        targets, predictions = zip(*self.pieces, strict=True)
        return number_of(self.function(np.concatenate(targets), np.concatenate(predictions)), self.function)


class F1:
    """F1 score of the predicted classes: of class 1 for two classes, else the mean over the classes."""

    def __init__(self) -> None:
        self.counts = ClassCounts()
        self.sums, self.add_sums, self.result = self.counts.sums, self.counts.add_sums, self.counts.f1

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: ARG002, D102
        self.counts.add(_classes(targets, predictions), predictions)


class Auroc:
    """Area under the ROC curve; for more than two classes, the mean over the classes, one against the rest."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Array, Array]] = []

    def add(self, outputs: Array, predictions: Array, targets: Array) -> None:  # noqa: ARG002, D102
        self.pieces.append((targets, outputs))

    def result(self) -> float:  # noqa: D102
        from scipy.special import softmax
        from sklearn.metrics import roc_auc_score

        targets, outputs = (np.concatenate(each) for each in zip(*self.pieces, strict=True))
        if outputs.ndim == 2 and outputs.shape[1] == 2 and targets.ndim == 1:
            outputs = outputs[:, 1] - outputs[:, 0]
        elif outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs, targets = outputs[:, 0], targets.reshape(-1)
        elif targets.ndim == 1 and outputs.ndim == 2:
            labels = np.arange(outputs.shape[1])
            return float(
                roc_auc_score(targets, softmax(outputs.astype(np.float64), 1), multi_class="ovr", labels=labels)
            )
        return float(roc_auc_score(targets, outputs))


def _columns(predictions: Array, targets: Array) -> tuple[Array, Array]:
    if predictions.size != targets.size:
        raise DataError(f"the predictions have shape {predictions.shape}, the targets {targets.shape}: they must agree")
    rows = len(targets)
    return predictions.reshape(rows, -1).astype(np.float64), targets.reshape(rows, -1).astype(np.float64)


_NAMED: dict[str, Callable[[], Metric | BatchMetric]] = {
    "accuracy": Accuracy,
    "auroc": Auroc,
    "f1": F1,
    "mae": partial(MeanError, 1),
    "mse": partial(MeanError, 2),
    "perplexity": Perplexity,
    "r2": R2,
    "rmse": partial(MeanError, 2, root=True),
}


def metric_factories(metrics: Metrics) -> dict[str, Callable[[], Metric | BatchMetric]]:
    """Return a factory of each metric, by the name of its result.

    Raises
    ------
    UnknownNameError : a name that is neither known nor of the form ``package.module:function``.
    ConfigurationError : a metric named ``loss``, or one that is neither a name nor a function.
    """
    if isinstance(metrics, str):
        metrics = (metrics,)
    if not isinstance(metrics, Mapping):
        metrics = {_name(metric): metric for metric in metrics}
    if "loss" in metrics:
        raise ConfigurationError("a metric cannot be named 'loss': this name is used for the mean loss")
    return {name: _factory(metric) for name, metric in metrics.items()}


def metrics_of_targets(metrics: Metrics) -> dict[str, Callable[[], Metric]]:
    """Return the factories of metrics that need outputs and targets only.

    Raises
    ------
    ConfigurationError : a metric reads batches, or as for `metric_factories`.
    """
    found: dict[str, Callable[[], Metric]] = {}
    for name, make in metric_factories(metrics).items():
        if isinstance(made := make(), BatchMetric):
            raise ConfigurationError(f"the metric {name!r} ({type(made).__name__}) is for torch models")
        found[name] = make  # type: ignore[assignment]
    return found


def _name(metric: Any) -> str:
    if isinstance(metric, str):
        return metric.rpartition(":")[2]
    return str(getattr(metric, "__name__", type(metric).__name__))


def _factory(metric: Any) -> Callable[[], Metric | BatchMetric]:
    if isinstance(metric, str):
        if metric in _NAMED:
            return _NAMED[metric]
        if top := re.fullmatch(r"top-([1-9]\d*)-accuracy", metric):
            return partial(TopAccuracy, int(top[1]))
        if ":" not in metric:
            raise UnknownNameError("metric", metric, [*_NAMED, "top-5-accuracy"])
        metric = load_object(metric)
    if all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset")):
        return partial(TorchMetric, metric)
    if not callable(metric):
        raise ConfigurationError(
            "a metric must be a name, a function (targets, predictions) or (outputs, batch), or an object of torchmetrics, "
            f"not {metric!r}"
        )
    return partial(MeanOfBatches if _reads_batches(metric) else FunctionMetric, metric)


def _reads_batches(function: Callable[..., Any]) -> bool:
    """Return whether the second parameter of a metric function is named ``batch``."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function without a signature, written in C
        return False
    return names[1:2] == ["batch"]
