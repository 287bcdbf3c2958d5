"""What a run does when a part of it dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, RunError, TooFewWorkersError
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import Watch
from chimera.training.fault_tolerance.pending_workers import Recruits
from chimera.training.fault_tolerance.settings import Tolerance
from chimera.training.progress.notifier import Told

_PATIENCE_S = 1.0
"""How long the others wait for a worker that is started; once that was not enough, nobody waits for any."""
_PATIENCE_FOR_ROOM_S = 30.0
"""How long a run waits for room that it cannot go on without."""
_THEN = {
    "redistribute": "; its data goes to the others",
    "drop": "; the others go on without it",
    "stop": "",
}


class Recovery:
    """Puts a cluster right after a loss, the same way for every strategy.

    It may itself meet a death; called again, it goes on where it was.

    Parameters
    ----------
    cluster : what is put right.
    watch : knows who was killed because he hung.
    tolerance : what becomes of the lost. A lost server is started anew, unless the run is to stop; a worker for which no
        restart is left is dropped.

    Attributes
    ----------
    go_back : brings the run back to its last snapshot, and says which; for when parameters were lost.
    asked_for : how many workers the user still wants in addition.
    """

    def __init__(self, engine: Engine, cluster: TrainingCluster, watch: Watch, tolerance: Tolerance) -> None:
        self._cluster, self._watch = cluster, watch
        self._policy, self._restarts_left = tolerance.on_worker_loss, tolerance.max_restarts
        self._min_workers, self._max_workers = tolerance.min_workers, tolerance.max_workers or 0
        self.go_back: Callable[[], str] = str
        self.asked_for = 0
        self._workers: list[str] = []  # to be respawned
        self._servers: list[int] = []
        self._parameters_lost = self._data_left = False
        self._recruits = Recruits(engine, cluster, watch)
        self._patience_s = _PATIENCE_S
        self._respawned = set(cluster.names)  # who was there before, if it comes

    def survive(self, error: ActorLost) -> Iterator[Told]:
        """Take the dead out of the cluster, start others in their places, and yield what is to be told.

        Raises
        ------
        ActorLost : the error itself, if nobody of this run is dead; or somebody died meanwhile: call again.
        RunError : a server is dead and no restarts are left.
        TooFewWorkersError : too few are left, or the policy is to stop.
        """
        workers, servers = self._cluster.drop_lost()
        mended = list(self._mend_supply())
        unfinished = self._workers or self._servers or self._parameters_lost or self._data_left
        if not (workers or servers or unfinished or mended):
            raise error
        yield from mended
        names = [*workers, *(f"server {index}" for index in servers)]
        yield from ((f"{name.split()[0]} lost", name, self._how(name)) for name in names)
        if self._policy == "stop" and names:
            said = f"{', '.join(names)} died, and on_worker_loss is 'stop'"
            raise TooFewWorkersError(f"{said}; resume the run from its last checkpoint")
        self._servers += servers
        held = self._cluster.shards or self._cluster.workers
        self._parameters_lost |= bool(servers) or not held or (bool(workers) and self._cluster.replicas == "parts")
        if self._policy == "respawn":
            self._workers += workers
        self._data_left |= bool(workers) and self._policy == "redistribute"
        yield from self._start_servers()
        yield from self._start_workers()
        yield from self._admit(self._patience_s)
        while len(self._cluster.workers) < self._min_workers:
            yield from self._start_workers(_PATIENCE_FOR_ROOM_S)
            if not self._recruits:
                break
            yield from self._admit(math.inf)
        self._cluster.check_enough(names)
        if self._parameters_lost:
            yield "went back", "", self.go_back()
            self._parameters_lost = False
        if self._data_left:
            self._cluster.deal()
            self._data_left = False

    @property
    def expecting(self) -> bool:
        """Whether somebody has been started who is not there yet, or the user has asked for somebody."""
        return bool(self._recruits or self.asked_for)

    def ask_for_one(self) -> None:
        """Want one worker more; raise RunError if there are as many as there may be."""
        if self._max_workers and len(self._cluster.names) + self.asked_for >= self._max_workers:
            raise RunError(f"max_workers is {self._max_workers}, and so many workers are there, or asked for")
        self.asked_for += 1

    def grow(self) -> Iterator[Told]:
        """Let those in who stand by now, and start more as far as they are wanted and there is room."""
        before = len(self._recruits)
        yield from self._mend_supply()
        yield from self._start_workers()
        while (self.asked_for or len(self._cluster.names) < self._max_workers) and self._cluster.has_room():
            self.asked_for = max(self.asked_for - 1, 0)
            self._recruits.start(f"worker {len(self._cluster.names)}")
        yield from self._admit(self._patience_s if len(self._recruits) > before else 0)

    def end(self) -> None:
        """Kill those who have not come in."""
        self._recruits.end()

    def _mend_supply(self) -> Iterator[Told]:
        for name in self._cluster.mend_supply():
            yield "pipeline respawned", name, "the workers went on by themselves meanwhile"

    def _start_servers(self) -> Iterator[Told]:
        while self._servers:
            name = f"server {self._servers[0]}"
            if self._restarts_left == 0:
                raise RunError(f"{name} died, and no restarts are left: resume the run from its last checkpoint")
            self._restarts_left -= 1
            self._cluster.respawn_server(self._servers.pop(0))
            yield "server respawned", name, f"in a new process; {self._restarts_left} restarts are left"

    def _start_workers(self, patience_s: float = 0) -> Iterator[Told]:
        while self._workers:
            name = self._workers[0]
            if self._restarts_left == 0:
                yield "worker dropped", name, "no restarts are left; the others go on without it"
            elif self._cluster.has_room(patience_s):
                self._restarts_left -= 1
                self._recruits.start(name)
            else:
                return  # it comes when there is
            self._workers.pop(0)

    def _admit(self, patience_s: float) -> Iterator[Told]:
        for name, why_not in self._recruits.admit(patience_s):
            if why_not:
                self._workers.append(name)
                yield "worker lost", name, f"while it started: {why_not}"
            elif name in self._respawned:
                yield (
                    "worker respawned",
                    name,
                    f"a new process has its rank and data; {self._restarts_left} restarts are left",
                )
            else:
                self._respawned.add(name)
                yield "worker joined", name, f"{len(self._cluster.workers)} workers are there now"
        if self._recruits and patience_s:
            self._patience_s = 0.0  # here, processes take long to start

    def _how(self, name: str) -> str:
        if name in self._watch.hung:
            self._watch.hung.discard(name)
            how = "gave no sign of life for too long, and was killed"
        else:
            how = "died"
        return how + (_THEN.get(self._policy, "") if name.startswith("worker") else "")
