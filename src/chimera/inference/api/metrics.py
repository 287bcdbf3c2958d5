"""Prometheus metrics of the coordinator's jobs and workers, computed at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator

_OF_JOB = ("job", "name")


class ClusterMetrics(Collector):
    """Metrics of the jobs that have not ended, and of the workers.

    A process that is not the coordinator reports ``chimera_inference_leads`` only.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` if this process is not the coordinator.
    """

    def __init__(self, leader: Callable[[], Coordinator]) -> None:
        self._leader = leader

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        try:
            leader = self._leader()
            found = leader.call(lambda: _metrics(leader))
        except NotCoordinator:
            found = []
        yield GaugeMetricFamily(
            "chimera_inference_leads", "1 if this process is the coordinator, else 0.", float(bool(found))
        )
        yield from found


def _metrics(leader: Coordinator) -> list[Metric]:
    now_s = leader.now_s()
    waiting = GaugeMetricFamily(
        "chimera_inference_waiting_queries", "Queries that are not in a running batch.", labels=_OF_JOB
    )
    rate = GaugeMetricFamily(
        "chimera_inference_rate", "Queries finished per second, over the last 10 s.", labels=_OF_JOB
    )
    processed = CounterMetricFamily("chimera_inference_processed_queries", "Queries finished.", labels=_OF_JOB)
    errors = CounterMetricFamily("chimera_inference_failed_queries", "Finished queries with an error.", labels=_OF_JOB)
    for job in leader.scheduler.jobs.values():
        if not job.ended:
            labels = (job.id, job.accepted.name)
            for family, value in ((waiting, job.waiting), (rate, job.rate(now_s)), (processed, job.finished),
                                  (errors, job.errors)):  # fmt: skip
                family.add_metric(labels, value)
    workers = GaugeMetricFamily("chimera_inference_workers", "Workers by state.", labels=("state",))
    for state, count in Counter(handle.state for handle in leader.workers.values()).items():
        workers.add_metric((state,), count)
    return [waiting, rate, processed, errors, workers]
