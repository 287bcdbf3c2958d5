"""Request metrics of a web server, in the Prometheus format of ``/metrics``."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one app. Each app has its own registry, so that several apps in one process stay separate.

    Attributes
    ----------
    registry : the Prometheus registry; register further metrics here.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "chimera_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "chimera_request_seconds", "Seconds until the answer was sent.", ["route"],
            buckets=_BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}  # faster than the library's own look-up

    def request_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is the path as declared, so that clients cannot create many labels."""
        key = (method, route, status)
        children = self._children.get(key)
        if children is None:
            children = self._requests.labels(method, route, str(status)), self._seconds.labels(route)
            self._children[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def page(self) -> bytes:
        """Return the text of ``/metrics``."""
        return generate_latest(self.registry)
