"""What a run does when a part of it dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from chimera.core.errors import ActorLost, RunError, TimeLimitError
from chimera.training.cluster import TrainingCluster
from chimera.training.watch import Watch

OnWorkerLoss: TypeAlias = Literal["respawn", "redistribute", "drop", "stop"]
Told: TypeAlias = tuple[str, str, str]
"""What is to be told: event, actor and detail."""

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
    policy : ``respawn`` starts a new worker with the lost one's rank and data, ``redistribute`` parts the data anew among
        those who are left, ``drop`` goes on without it, ``stop`` ends the run. A lost server is started anew in any case but
        the last.
    max_restarts : how often a run starts a lost actor anew; after that workers are dropped.
    max_workers : so many workers there may be; they come when there is room for them.

    Attributes
    ----------
    go_back : brings the run back to its last snapshot, and says which; for when parameters were lost.
    asked_for : how many workers the user wants in addition.
    """

    def __init__(
        self,
        cluster: TrainingCluster,
        watch: Watch,
        policy: OnWorkerLoss = "respawn",
        max_restarts: int = 3,
        max_workers: int | None = None,
    ) -> None:
        self._cluster, self._watch, self._policy, self._restarts_left = cluster, watch, policy, max_restarts
        self._max_workers = max_workers or 0
        self.go_back: Callable[[], str] = str
        self.asked_for = 0
        self._workers: list[str] = []  # to be respawned
        self._servers: list[int] = []
        self._parameters_lost = self._data_left = False
        self._absent: list[str] = []  # may come back when there is room

    def survive(self, error: ActorLost) -> Iterator[Told]:
        """Take the dead out of the cluster, start others in their places, and yield what is to be told.

        Raises
        ------
        ActorLost : the error itself, if nobody of this run is dead; or somebody died meanwhile: call again.
        RunError : the policy is to stop, or a server is dead and no restarts are left.
        TooFewWorkersError : too few are left.
        """
        workers, servers = self._cluster.drop_lost()
        unfinished = self._workers or self._servers or self._parameters_lost or self._data_left
        if not (workers or servers or unfinished):
            raise error
        names = [*workers, *(f"server {index}" for index in servers)]
        yield from ((f"{name.split()[0]} lost", name, self._how(name)) for name in names)
        if self._policy == "stop" and names:
            said = f"{', '.join(names)} died, and on_worker_loss is 'stop'"
            raise RunError(f"{said}; resume the run from its last checkpoint")
        self._servers += servers
        self._parameters_lost |= bool(servers) or not (self._cluster.shards or self._cluster.workers)
        if self._policy == "respawn":
            self._workers += workers
        self._data_left |= bool(workers) and self._policy == "redistribute"
        yield from self._start_servers()
        yield from self._start_workers()
        if self._parameters_lost:
            self._cluster.check_enough(names)
            yield "went back", "", self.go_back()
            self._parameters_lost = False
        self._cluster.check_enough(names)
        if self._data_left:
            self._cluster.deal()
            self._data_left = False

    def grow(self) -> Iterator[Told]:
        """Let workers in as far as they are wanted and there is room: those who were left out for want of it come first."""
        while self.asked_for or self._absent or len(self._cluster.names) < self._max_workers:
            if not self._cluster.has_room():
                return
            name = self._absent[0] if self._absent else f"worker {len(self._cluster.names)}"
            try:
                self._cluster.join(name)
            except TimeLimitError:
                return  # the room was taken by somebody else
            except ActorLost as error:
                self._absent, self.asked_for = self._absent[1:], max(self.asked_for - 1, 0)
                yield "worker lost", name, f"while it joined: {error}"
                continue
            if self._absent:
                self._absent.pop(0)
            else:
                self.asked_for = max(self.asked_for - 1, 0)
            yield "worker joined", name, f"{len(self._cluster.workers)} workers are there now"

    def _start_servers(self) -> Iterator[Told]:
        while self._servers:
            name = f"server {self._servers[0]}"
            if self._restarts_left == 0:
                raise RunError(f"{name} died, and no restarts are left: resume the run from its last checkpoint")
            self._restarts_left -= 1
            self._cluster.respawn_server(self._servers.pop(0))
            yield "server respawned", name, f"in a new process; {self._restarts_left} restarts are left"

    def _start_workers(self) -> Iterator[Told]:
        while self._workers:
            name = self._workers[0]
            if self._restarts_left == 0:
                self._workers.pop(0)
                yield "worker dropped", name, "no restarts are left; the others go on without it"
                continue
            self._restarts_left -= 1
            try:
                self._cluster.respawn(name)
            except TimeLimitError as error:
                self._absent.append(self._workers.pop(0))
                yield "worker dropped", name, f"there is no room for it: {error}"
                continue
            self._workers.pop(0)
            yield (
                "worker respawned",
                name,
                f"a new process has its rank and data; {self._restarts_left} restarts are left",
            )

    def _how(self, name: str) -> str:
        if name in self._watch.hung:
            self._watch.hung.discard(name)
            how = "gave no sign of life for too long, and was killed"
        else:
            how = "died"
        return how + (_THEN.get(self._policy, "") if name.startswith("worker") else "")
