"""Prometheus metrics of the coordinator's jobs and workers, computed at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chimera.inference.api.views import rates_per_weight
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.scheduling.autoscaling import queue_s
from chimera.inference.scheduling.job import Job

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
    jobs = [job for job in leader.scheduler.jobs.values() if not job.ended]
    of_jobs: list[tuple[GaugeMetricFamily | CounterMetricFamily, Callable[[Job], float]]] = [
        (_gauge("waiting_queries", "Queries that are not in a running batch.", _OF_JOB), lambda job: job.waiting),
        (_gauge("rate", "Queries finished per second, over the last 10 s.", _OF_JOB), lambda job: job.rate(now_s)),
        (_gauge("weight", "Weight of the job's share.", _OF_JOB), lambda job: job.weight),
        (_gauge("job_workers", "Workers that serve the job.", _OF_JOB), lambda job: len(job.serving)),
        (_counter("processed_queries", "Queries finished.", _OF_JOB), lambda job: job.finished),
        (_counter("failed_queries", "Finished queries with an error.", _OF_JOB), lambda job: job.errors),
    ]
    for family, value in of_jobs:
        for job in jobs:
            family.add_metric((job.id, job.accepted.name), value(job))
    workers = _gauge("workers", "Workers by state.", ("state",))
    for state, count in Counter(handle.state for handle in leader.workers.values()).items():
        workers.add_metric((state,), count)
    lost = _counter("lost_workers", "Workers that have died or hung since this coordinator leads.", ("how",))
    for how, count in leader.losses.items():
        lost.add_metric((how,), count)
    available = sum(handle.available for handle in leader.workers.values())
    waits = _gauge("queue_seconds", "Seconds until all waiting queries would be in a batch; infinite without workers.")
    waits.add_metric((), queue_s(jobs, available))
    fair = _gauge("fair_rate", "Rate per weight that all jobs with work would have, in the unit of the policy.")
    fair.add_metric((), rates_per_weight(leader)["fair"])
    epoch = _gauge("epoch", "Number of the coordinator: it grows with each takeover.")
    epoch.add_metric((), leader.lease.epoch)
    return [*(family for family, _ in of_jobs), workers, lost, waits, fair, epoch]


def _gauge(name: str, what: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"chimera_inference_{name}", what, labels=labels)


def _counter(name: str, what: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"chimera_inference_{name}", what, labels=labels)
