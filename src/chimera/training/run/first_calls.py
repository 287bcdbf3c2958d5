"""The first call of a run: how many rows each worker has. What a constructor raises shows here."""

from __future__ import annotations

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import Watch
from chimera.training.fault_tolerance.recovery import Recovery

_MOST_ROWS = 1 << 53


def first_answers(engine: Engine, watch: Watch, cluster: TrainingCluster, recovery: Recovery) -> list[int]:
    """Return how many rows each living worker has; a loss meanwhile is met as amid the run, and told with its first events.

    Raises
    ------
    ActorLost : nobody of this run is dead.
    RunError : too few are left, or the policy is to stop.
    """
    while True:
        try:
            sizes = watch.get([worker.samples() for worker in cluster.workers])
            for worker, size in zip(cluster.workers, sizes, strict=True):
                if type(size) is not int or not 0 <= size < _MOST_ROWS:
                    engine.kill(worker)
                    raise ActorLost(f"{worker.name} was lost: it says that it has {size!r:.60} rows")
        except ActorLost as error:
            _survive(error, cluster, recovery)
        else:
            return list(sizes)


def _survive(error: ActorLost, cluster: TrainingCluster, recovery: Recovery) -> None:
    try:
        for what, actor, detail in recovery.survive(error):
            if what != "went back":  # nothing is there to go back from
                cluster.told.append((what, actor, f"{detail}: {error}" if what.endswith(" lost") else detail))
    except ActorLost as another:
        if another is error:
            raise
        _survive(another, cluster, recovery)
