"""Recovery of a run from lost workers and servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from chimera.core.counted import counted
from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, RunError, TooFewWorkersError
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.fault_tolerance.attendance import Attendance
from chimera.training.fault_tolerance.pending_workers import PendingWorkers
from chimera.training.fault_tolerance.settings import FaultTolerance
from chimera.training.progress.notifier import EventText

_PATIENCE_S = 1.0
"""Seconds that a run waits for a worker to start, unless its engine has another ``patience_s``. After the first start that
takes longer, the run no longer waits."""
_RESOURCES_TIMEOUT_S = 30.0
"""Seconds that a run waits for the engine to have room for a worker without which it cannot continue."""
_THEN = {
    "redistribute": "; its data goes to the others",
    "drop": "; the others continue without it",
    "stop": "",
}


class Recovery:
    """Repairs a cluster after a loss, in the same way for every strategy.

    Another actor may die during recovery. `recover` then raises. Its next call continues the recovery.

    Parameters
    ----------
    cluster : the cluster.
    monitor : records which actors were killed because they hung.
    tolerance : the policy for lost workers. A lost server is restarted unless the policy is ``stop``. A worker is dropped when
        no restarts are left.

    Attributes
    ----------
    go_back : returns the run to its last snapshot after a loss of parameters, and describes it.
    requested : workers that the user has requested and that have not been started.
    stopped : returns whether the user has stopped the run, which may be waiting for nodes.
    """

    def __init__(
        self, engine: Engine, cluster: TrainingCluster, monitor: HeartbeatMonitor, tolerance: FaultTolerance
    ) -> None:
        self._cluster, self._monitor = cluster, monitor
        self._policy, self._restarts_left = tolerance.on_worker_loss, tolerance.max_restarts
        self._min_workers, self._max_workers = tolerance.min_workers, tolerance.max_workers or 0
        self.go_back: Callable[[], str] = str
        self.requested = 0
        living = {worker.name for worker in cluster.workers}
        self._nodes = Attendance(engine, living)
        self._least = max(self._min_workers, self._nodes.least)
        self.stopped: Callable[[], bool] = lambda: False
        self._workers = [name for name in cluster.names if name not in living]  # to be respawned
        self._servers: list[int] = []
        self._parameters_lost = self._data_left = False
        self._pending = PendingWorkers(engine, cluster, monitor)
        self._patience_s = getattr(engine, "patience_s", _PATIENCE_S)
        self._respawned = set(living)  # a worker with one of these names is a replacement

    def recover(self, error: ActorLost) -> Iterator[EventText]:
        """Remove dead actors from the cluster, start replacements, and yield the events.

        Raises
        ------
        ActorLost : ``error`` itself, if no actor of this run is dead. Also if another actor died during recovery: call this
            method again.
        RunError : a server is dead and no restarts are left.
        TooFewWorkersError : fewer than ``min_workers`` are left, or the policy is ``stop``.
        """
        workers, servers, edges = self._cluster.drop_lost()
        self._cluster.forget_groups()
        replaced = list(self._replace_lost_feeders())
        waiting = any(map(self._nodes.is_there, self._workers))
        unfinished = waiting or self._servers or self._parameters_lost or self._data_left
        if not (workers or servers or edges or unfinished or replaced):
            raise error
        yield from replaced
        names = [*workers, *(f"server {index}" for index in servers), *edges]
        yield from ((f"{name.split()[0]} lost", name, self._how(name)) for name in names)
        if self._policy == "stop" and names:
            message = f"{', '.join(names)} died, and on_worker_loss is 'stop'"
            raise TooFewWorkersError(f"{message}; resume the run from its last checkpoint")
        self._servers += servers
        yield from self._replace_edges(edges)
        held = self._cluster.shards or self._cluster.workers
        self._parameters_lost |= bool(servers) or not held or (bool(workers) and self._cluster.replicas == "parts")
        self._parameters_lost = self._parameters_lost or self._cluster.servers_differ()
        if self._policy == "respawn":
            self._workers += workers
        self._data_left |= bool(workers) and self._policy == "redistribute"
        yield from self._start_servers()
        yield from self._start_workers()
        yield from self._admit(self._patience_s)
        yield from self._wait_for_enough()
        self._cluster.check_enough(names)
        if self._parameters_lost:
            yield "went back", "", self.go_back()
            self._parameters_lost = False
        if self._data_left:
            self._cluster.reshard()
            self._data_left = False

    def _wait_for_enough(self) -> Iterator[EventText]:
        """Wait until there are enough workers, or no further workers can come."""
        paused = False
        while (there := len(self._cluster.workers)) < self._least and not self.stopped():
            yield from self._start_workers(_RESOURCES_TIMEOUT_S)
            if self._pending:
                yield from self._admit(_PATIENCE_S if self._nodes.changes else math.inf)
            elif self._nodes.least and there + len(self._workers) >= self._least:
                if not paused:
                    yield "paused", "", f"the run has {counted(there, 'worker')} and needs {self._least}"
                paused = True
                self._nodes.wait(self._workers, self.stopped)
            else:
                break
        if paused and there >= self._least:
            yield "resumed", "", f"the run has {counted(there, 'worker')}"

    @property
    def arrived(self) -> bool:
        """Whether a node has come whose worker is not started yet."""
        return self._nodes.changes and any(map(self._nodes.is_there, self._workers))

    @property
    def expecting(self) -> bool:
        """Whether a worker is starting or requested."""
        return bool(self._pending or self.requested)

    def request_worker(self) -> None:
        """Request one more worker; raise RunError if the run has ``max_workers`` already."""
        if self._max_workers and len(self._cluster.names) + self.requested >= self._max_workers:
            raise RunError(f"max_workers is {self._max_workers}: this many workers exist or are requested")
        self.requested += 1

    def add_workers(self) -> Iterator[EventText]:
        """Admit workers that have started, start requested workers while there is room, and yield the events."""
        before = len(self._pending)
        yield from self._replace_lost_feeders()
        yield from self._start_workers()
        while (self.requested or len(self._cluster.names) < self._max_workers) and self._cluster.has_room():
            self.requested = max(self.requested - 1, 0)
            self._pending.start(f"worker {len(self._cluster.names)}")
        waits = len(self._pending) > before and not self._nodes.changes
        yield from self._admit(self._patience_s if waits else 0)

    def end(self) -> None:
        """Kill the workers that were not admitted."""
        self._pending.end()

    def _replace_lost_feeders(self) -> Iterator[EventText]:
        for name in self._cluster.replace_lost_feeders():
            yield "pipeline respawned", name, "the workers prepared their data themselves meanwhile"

    def _replace_edges(self, names: Sequence[str]) -> Iterator[EventText]:
        """Count lost edge servers, which the strategy replaces when it starts again."""
        for name in names:
            self._use_restart(name)
            yield (
                "edge respawned",
                name,
                f"the round of the cloud is repeated; {counted(self._restarts_left, 'restart')} left",
            )

    def _use_restart(self, name: str) -> None:
        if self._restarts_left == 0:
            raise RunError(f"{name} died, and no restarts are left: resume the run from its last checkpoint")
        self._restarts_left -= 1

    def _start_servers(self) -> Iterator[EventText]:
        while self._servers:
            name = f"server {self._servers[0]}"
            self._use_restart(name)
            self._cluster.respawn_server(self._servers.pop(0))
            yield "server respawned", name, f"in a new process; {counted(self._restarts_left, 'restart')} left"

    def _start_workers(self, patience_s: float = 0) -> Iterator[EventText]:
        for name in filter(self._nodes.is_there, list(self._workers)):
            free = self._nodes.was_away(name)
            if self._restarts_left == 0 and not free:
                yield "worker dropped", name, "no restarts are left; the others continue without it"
            elif self._cluster.has_room(patience_s):
                self._restarts_left -= not free
                self._nodes.started(name)
                self._pending.start(name)
            else:
                return  # started later, when there is room
            self._workers.remove(name)

    def _admit(self, patience_s: float) -> Iterator[EventText]:
        for name, why_not in self._pending.admit(patience_s):
            if why_not:
                self._workers.append(name)
                yield "worker lost", name, f"during its start: {why_not}"
            elif name in self._respawned:
                yield (
                    "worker respawned",
                    name,
                    f"a new process has its rank and data; {counted(self._restarts_left, 'restart')} left",
                )
            else:
                self._respawned.add(name)
                yield "worker joined", name, f"the run has {counted(len(self._cluster.workers), 'worker')} now"
        if self._pending and patience_s:
            self._patience_s = 0.0  # processes start slowly on this engine

    def _how(self, name: str) -> str:
        if name in self._monitor.hung:
            self._monitor.hung.discard(name)
            how = "sent no heartbeat within worker_timeout_s, and was killed"
        else:
            how = "died"
        return how + (_THEN.get(self._policy, "") if name.startswith("worker") else "")
