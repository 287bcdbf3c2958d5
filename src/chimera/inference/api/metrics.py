"""What a coordinator tells Prometheus of its jobs and workers, at the moment of each look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator

_OF_JOB = ("job", "name")


class ClusterFigures(Collector):
    """Of those jobs that have not ended; only ``chimera_inference_leads`` while this process is not the coordinator.

    Parameters
    ----------
    leader : returns the coordinator; raises `NotCoordinator` while this process is none.
    """

    def __init__(self, leader: Callable[[], Coordinator]) -> None:
        self._leader = leader

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        try:
            leader = self._leader()
            found = leader.ask(lambda: _figures(leader))
        except NotCoordinator:
            found = []
        yield GaugeMetricFamily("chimera_inference_leads", "Whether this is the coordinator.", float(bool(found)))
        yield from found


def _figures(leader: Coordinator) -> list[Metric]:
    now_s = leader.now_s()
    waiting = GaugeMetricFamily("chimera_inference_waiting_queries", "Queries in no batch under way.", labels=_OF_JOB)
    rate = GaugeMetricFamily("chimera_inference_rate", "Queries finished a second, over 10 s.", labels=_OF_JOB)
    processed = CounterMetricFamily("chimera_inference_processed_queries", "Queries finished.", labels=_OF_JOB)
    errors = CounterMetricFamily("chimera_inference_failed_queries", "Those with an error.", labels=_OF_JOB)
    for job in leader.scheduler.jobs.values():
        if not job.ended:
            labels = (job.id, job.accepted.name)
            for family, value in ((waiting, job.waiting), (rate, job.rate(now_s)), (processed, job.finished),
                                  (errors, job.errors)):  # fmt: skip
                family.add_metric(labels, value)
    workers = GaugeMetricFamily("chimera_inference_workers", "Workers by what they do.", labels=("state",))
    for state, count in Counter(seat.state for seat in leader.seats.values()).items():
        workers.add_metric((state,), count)
    return [waiting, rate, processed, errors, workers]
