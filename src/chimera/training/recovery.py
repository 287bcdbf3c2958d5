"""What a run does when a worker dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from chimera.core.errors import ActorLost, RunError
from chimera.training.cluster import TrainingCluster

OnWorkerLoss: TypeAlias = Literal["respawn", "drop", "stop"]


class Recovery:
    """Puts a cluster right after a loss, the same way for every strategy.

    Parameters
    ----------
    policy : ``respawn`` starts a new worker with the lost one's rank and data, ``drop`` goes on without it, ``stop`` ends the
        run.
    max_restarts : how often a run respawns; after that it drops.
    """

    def __init__(self, cluster: TrainingCluster, policy: OnWorkerLoss = "respawn", max_restarts: int = 3) -> None:
        self._cluster, self._policy, self._left = cluster, policy, max_restarts

    def survive(self, error: ActorLost) -> Iterator[tuple[str, str, str]]:
        """Take the dead out of the cluster and yield what is to be told: event, actor and detail.

        Raises
        ------
        ActorLost : the error itself, if nobody of this run is dead.
        RunError : a server is dead, every copy of the model is, or the policy is to stop.
        TooFewWorkersError : too few are left.
        """
        lost = self._cluster.drop_lost()
        if not lost:
            raise error
        for name in lost:
            dropped = self._policy == "drop" or (self._policy == "respawn" and self._left == 0)
            yield "worker lost", name, "died; the others go on without it" if dropped else "died"
        if self._policy == "stop":
            raise RunError(
                f"{', '.join(lost)} died, and on_worker_loss is 'stop'; resume the run from its last checkpoint"
            )
        for name in lost:
            if self._policy == "respawn" and self._left > 0:
                self._left -= 1
                self._cluster.respawn(name)
                yield "worker respawned", name, f"a new process has its rank and data; {self._left} restarts are left"
        self._cluster.check_enough(lost)
