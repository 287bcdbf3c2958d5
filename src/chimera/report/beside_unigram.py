"""The loss of a word model beside that of a model that only knows how often words occur."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from chimera.report.run_files import finite


class BesideUnigram(NamedTuple):
    """Which metric is compared, and with what.

    Attributes
    ----------
    metric : the name of the one that is the cross-entropy of a word, in nats.
    unigram : that of the unigram model of the training text, on the same windows.
    below : by how much the metric is less; negative if it is more.
    """

    metric: str
    unigram: float
    below: float

    def told(self) -> str:
        """Return how far off it is, in words."""
        return f"{abs(self.below):.3f} nats {'below' if self.below >= 0 else 'above'}"


def beside_unigram(figures: Mapping[str, Any]) -> BesideUnigram | None:
    """Return the comparison for a run's summary; None where there is no text, or no cross-entropy.

    A loss is one if it stands beside an accuracy; with negative sampling, the cross-entropy has a name of its own.
    """
    metrics = figures.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    metric = next((name for name in ("cross-entropy", "loss") if name in metrics), "loss")
    unigram, own = finite(figures.get("unigram_loss")), finite(metrics.get(metric))
    if "accuracy" not in metrics or not np.isfinite(unigram - own):
        return None
    return BesideUnigram(metric, unigram, unigram - own)
