"""The log of a Lightning module: numbers, averaged over the samples of an evaluation, and objects of ``torchmetrics``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError

_LOSSES = ("loss", "val_loss", "valid_loss", "validation_loss", "test_loss")


class NoLog:
    """Drops the values that a module logs in a training step: a run reports the mean training loss of all workers itself."""

    def log(self, *_: Any, **__: Any) -> None:
        """Drop a value."""

    def log_dict(self, *_: Any, **__: Any) -> None:
        """Drop values."""


class EvaluationLog:
    """Collects the values that a module logs in an evaluation.

    Parameters
    ----------
    owner : name of the module, for errors.

    Attributes
    ----------
    rows : number of samples of the current batch: the weight of the values that are logged.
    """

    def __init__(self, owner: str) -> None:
        self._owner, self.rows = owner, 1
        self._sums: dict[str, tuple[float, float]] = {}  # by name: weighted sum, and sum of the weights
        self._metrics: dict[str, Any] = {}
        self._of_batch: dict[str, Any] = {}

    def begin(self, rows: int) -> None:
        """Begin a batch of ``rows`` samples."""
        self.rows, self._of_batch = rows, {}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,  # noqa: ARG002 - positions as in Lightning
        logger: bool | None = None,  # noqa: ARG002
        on_step: bool | None = None,  # noqa: ARG002
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        *_: Any,
        batch_size: int | None = None,
        **__: Any,
    ) -> None:
        """Add a value, as Lightning's ``self.log``: a number, a tensor of one element, or an object of ``torchmetrics``.

        Raises
        ------
        ConfigurationError : the value is something else, or it is reduced by another function than the mean.
        """
        if on_epoch is False:
            return
        if is_metric(value):
            self._metrics[name] = value
            return
        if reduce_fx != "mean" and getattr(reduce_fx, "__name__", "") != "mean":
            raise ConfigurationError(
                f"{self._owner} logs {name!r} with reduce_fx = {reduce_fx!r}: an evaluation reports means; log a torchmetrics "
                "object for others"
            )
        weight = self.rows if batch_size is None else batch_size
        total, weights = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = total + _number(value, name, self._owner) * weight, weights + weight
        self._of_batch[name] = value

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Add several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)

    def loss(self) -> Any:
        """Return the loss that was logged for the current batch under a usual name, or None."""
        plain = {re.sub(r"\W+", "_", name): value for name, value in self._of_batch.items()}
        return next((plain[name] for name in _LOSSES if name in plain), None)

    def figures(self) -> dict[str, float]:
        """Return the weighted means, and the results of the metrics, by name.

        Raises
        ------
        ConfigurationError : a metric has more than one value.
        """
        means = {name: total / weight for name, (total, weight) in self._sums.items() if weight}
        return means | {name: _number(metric.compute(), name, self._owner) for name, metric in self._metrics.items()}


def is_metric(value: Any) -> bool:
    """Return whether a value is an object of ``torchmetrics``, which accumulates batches itself."""
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(value, library.Metric)


def reset_metrics(module: Any) -> None:
    """Reset all objects of ``torchmetrics`` in a module."""
    library = sys.modules.get("torchmetrics")
    if library is None:
        return
    kinds = library.Metric, library.MetricCollection
    for part in reversed(
        [part for part in module.modules() if isinstance(part, kinds)]
    ):  # a collection after its metrics
        part.reset()


def _number(value: Any, name: str, owner: str) -> float:
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    if not isinstance(value, int | float) and not (hasattr(value, "item") and size == 1):
        raise ConfigurationError(
            f"{owner} logs {name!r} as {type(value).__name__}: log a number, a tensor of one element, or a torchmetrics object "
            "with one value"
        )
    return float(value)
