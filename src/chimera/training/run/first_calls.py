"""The first call to each worker: how many rows it has. Errors of constructors are raised here."""

from __future__ import annotations

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.fault_tolerance.recovery import Recovery

_MAX_ROWS = 1 << 53


def first_calls(engine: Engine, monitor: HeartbeatMonitor, cluster: TrainingCluster, recovery: Recovery) -> list[int]:
    """Return the number of rows of each living worker.

    A loss is handled as during training, and reported with the first events of the run.

    Raises
    ------
    ActorLost : the lost actor does not belong to this run.
    RunError : too few workers are left, or ``on_worker_loss`` is ``stop``.
    """
    while True:
        try:
            sizes = monitor.get([worker.samples() for worker in cluster.workers])
            for worker, size in zip(cluster.workers, sizes, strict=True):
                if type(size) is not int or not 0 <= size < _MAX_ROWS:
                    engine.kill(worker)
                    raise ActorLost(f"{worker.name} was lost: it reported {size!r:.60} as its number of rows")
        except ActorLost as error:
            _recover_from(error, cluster, recovery)
        else:
            return list(sizes)


def _recover_from(error: ActorLost, cluster: TrainingCluster, recovery: Recovery) -> None:
    try:
        for what, actor, detail in recovery.recover(error):
            if what != "went back":  # no round was computed yet
                cluster.unreported.append((what, actor, f"{detail}: {error}" if what.endswith(" lost") else detail))
    except ActorLost as another:
        if another is error:
            raise
        _recover_from(another, cluster, recovery)
