"""What a node counts besides its requests."""

from __future__ import annotations

from prometheus_client import Counter

from chimera.web.metrics import Metrics


class NodeMetrics(Metrics):
    """The figures of a master or a worker."""

    def __init__(self) -> None:
        super().__init__()
        self._fits = Counter("chimera_fits", "Fits that ended.", ["result"], registry=self.registry)
        self._rows = Counter("chimera_rows_predicted", "Rows that predictions were made for.", registry=self.registry)

    def fit_ended(self, *, well: bool) -> None:
        """Count a fit."""
        self._fits.labels("ok" if well else "error").inc()

    def rows_predicted(self, count: int) -> None:
        """Count the rows of a prediction."""
        self._rows.inc(count)
