"""Metrics of a node besides those of requests."""

from __future__ import annotations

from prometheus_client import Counter

from chimera.web.metrics import Metrics


class NodeMetrics(Metrics):
    """The metrics of a master or a worker."""

    def __init__(self) -> None:
        super().__init__()
        self._fits = Counter("chimera_fits", "Completed fits.", ["result"], registry=self.registry)
        self._rows = Counter("chimera_rows_predicted", "Rows predicted.", registry=self.registry)

    def count_fit(self, *, ok: bool) -> None:
        """Count a fit that succeeded or failed."""
        self._fits.labels("ok" if ok else "error").inc()

    def count_rows(self, count: int) -> None:
        """Count the rows of a prediction."""
        self._rows.inc(count)
