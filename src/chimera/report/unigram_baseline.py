"""Comparison of a word model's cross-entropy with that of a unigram model, which knows word frequencies only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from chimera.report.run_files import finite


class UnigramBaseline(NamedTuple):
    """A cross-entropy and that of the unigram model.

    Attributes
    ----------
    metric : name of the metric that is the cross-entropy of a word, in nats.
    unigram : cross-entropy of the unigram model of the training text, on the same windows.
    below : ``unigram`` minus the metric; negative if the metric is larger.
    """

    metric: str
    unigram: float
    below: float

    def difference(self) -> str:
        """Return the difference as text."""
        return f"{abs(self.below):.3f} nats {'below' if self.below >= 0 else 'above'}"


def unigram_baseline(figures: Mapping[str, Any]) -> UnigramBaseline | None:
    """Return the comparison for a run's summary; None if the run has no text or no cross-entropy.

    The loss is a cross-entropy if there is an accuracy too. With negative sampling, the metric is named ``cross-entropy``.
    """
    metrics = figures.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    metric = next((name for name in ("cross-entropy", "loss") if name in metrics), "loss")
    unigram, own = finite(figures.get("unigram_loss")), finite(metrics.get(metric))
    if "accuracy" not in metrics or not np.isfinite(unigram - own):
        return None
    return UnigramBaseline(metric, unigram, unigram - own)
