"""The engine as a strategy sees it: living workers, servers, and who is late."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ConfigurationError, RunError, TooFewWorkersError


class TrainingCluster:
    """What the trainer hands to a strategy.

    Parameters
    ----------
    engine : where the actors run.
    make_worker : makes the learner of a rank.
    world_size : how many learners.
    make_servers : makes the parameter shards.
    min_workers : with fewer living workers than this, the run stops.
    """

    def __init__(
        self,
        engine: Engine,
        make_worker: Callable[[int], Any],
        world_size: int,
        make_servers: Callable[[int], list[Any]],
        min_workers: int = 1,
    ) -> None:
        self._engine, self._make_servers, self._min_workers = engine, make_servers, min_workers
        self._make_worker = make_worker
        self.workers = [make_worker(rank) for rank in range(world_size)]
        self._names = [worker.name for worker in self.workers]
        self.shards: list[Any] = []
        self.round, self.horizon = 0, 1
        self._late: dict[str, Any] = {}  # workers that still compute an answer nobody waits for
        self._answers: deque[tuple[str, Any]] = (
            deque()
        )  # that were there when `first` last waited, and what they answered

    def servers(self, shards: int) -> list[Any]:
        """Return the parameter shards; the same ones each time."""
        if not self.shards:
            self.shards = self._make_servers(shards)
        if len(self.shards) != shards:
            raise ConfigurationError(f"the checkpoint was written with {len(self.shards)} shards, not {shards}")
        return self.shards

    def gather(self, ask: Callable[[Any], Any], quorum: float = 1.0, timeout_s: float | None = None) -> list[Any]:
        """Ask every free worker, and return the answers of a quorum, in rank order.

        Raises
        ------
        TooFewWorkersError : the time is over and fewer than ``min_workers`` have answered.
        """
        if quorum == 1 and timeout_s is None:
            return [ask(worker) for worker in self.workers]
        needed = max(math.ceil(quorum * len(self.workers)), 1)
        deadline = math.inf if timeout_s is None else self._engine.now() + timeout_s
        # With a time limit, who is late has had his time: the others do not wait for him again.
        self._free_workers(needed if timeout_s is None else 1, deadline)
        answers = {worker.name: ask(worker) for worker in self.on_time()}
        needed = min(needed, len(answers))
        heads = {name: _head(answer) for name, answer in answers.items()}
        done = self._await_living(heads, needed, deadline)
        self._late.update({name: head for name, head in heads.items() if name not in done})
        if len(done) < self._min_workers:
            came = f"{len(done)} of {len(self.workers)} workers answered in {timeout_s} s"
            raise TooFewWorkersError(f"{came}, fewer than min_workers = {self._min_workers}")
        return [answers[worker.name] for worker in self.workers if worker.name in done]

    def first(self, pending: Mapping[str, Any]) -> str:
        """Wait until one of the workers has answered, and return its name; of several, the first to have done so.

        Raises
        ------
        ActorLost : one of them is dead.
        """
        heads = {str(worker.name): _head(pending[worker.name]) for worker in self.workers if worker.name in pending}
        winner = self._next_answer(heads)
        if winner is None:
            done, _ = self._engine.wait(heads.values(), 1)
            if dead := self._dead() & set(heads):
                raise ActorLost(f"{', '.join(sorted(dead))} died")
            names = {id(ref): name for name, ref in heads.items()}
            self._answers = deque((names[id(ref)], ref) for ref in done)
            winner, _ = self._answers.popleft()
        self._late = {name: ref for name, ref in heads.items() if name != winner}
        return winner

    def _next_answer(self, heads: Mapping[str, Any]) -> str | None:
        """Return who else had answered when `first` last waited, the earliest of them: there is no need to ask again."""
        while self._answers:
            name, ref = self._answers.popleft()
            if heads.get(name) is ref:
                return name
        return None

    def group(self) -> Any:
        """Return a group of the living workers, in rank order."""
        return self._engine.group(self.workers)

    def get(self, refs: Any) -> Any:
        """Return values to the driver."""
        return self._engine.get(refs)

    def drop_lost(self) -> list[str]:
        """Leave out the workers that are dead, and return their names.

        Raises
        ------
        RunError : a server is dead, and its parameters with it; or every copy of the model where there are no servers.
        """
        dead = self._dead()
        for server in self.shards:
            if server.name in dead:
                raise RunError(f"{server.name} died with its parameters: resume the run from its last checkpoint")
        lost = [worker.name for worker in self.workers if worker.name in dead]
        self.workers = [worker for worker in self.workers if worker.name not in dead]
        self._late = {name: ref for name, ref in self._late.items() if name not in dead}
        if lost and not self.workers and not self.shards:
            raise RunError(f"{', '.join(lost)} died, and the model with it: resume the run from its last checkpoint")
        return lost

    def respawn(self, name: str) -> None:
        """Start a new worker in the place of a lost one; where there are no servers, as a copy of the furthest worker."""
        rank = self._names.index(name)
        worker = self._make_worker(rank)
        if self.shards:
            self.get(worker.go_to(self.round))
        else:
            steps = self.get([other.step() for other in self.workers])
            self.get(worker.restore(self.workers[steps.index(max(steps))].state()))
        place = sum(self._names.index(other.name) < rank for other in self.workers)
        self.workers.insert(place, worker)

    def check_enough(self, lost: Sequence[str]) -> None:
        """Raise `TooFewWorkersError` if fewer than ``min_workers`` are left."""
        if len(self.workers) < self._min_workers:
            left = f"{len(self.workers)} workers are left, fewer than min_workers = {self._min_workers}"
            raise TooFewWorkersError(f"{', '.join(lost)} died; {left}")

    def on_time(self) -> list[Any]:
        """Return the living workers that are not busy with an answer nobody waits for; asking them costs no wait."""
        if self._late:
            for name in self._await_living(self._late, 0, self._engine.now()):
                del self._late[name]
        return [worker for worker in self.workers if worker.name not in self._late]

    def settle(self) -> None:
        """Wait until nobody is late any more, so that the state of the run is all in servers and workers."""
        self._free_workers(len(self.workers), math.inf)

    def state(self) -> dict[str, Any]:
        """Return what servers and workers hold: servers, or one worker's replica where there are none, and who stands where."""
        return {
            "servers": self.get([server.state() for server in self.shards]),
            "replica": None if self.shards else self.get(self.workers[0].state()),
            "steps": self.get([worker.step() for worker in self.workers]),
            "buffers": self.get([worker.buffers() for worker in self.workers]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give servers and workers what `state` returned; a worker that was not there then takes the first one's part."""
        if state["servers"]:
            pairs = zip(self.servers(len(state["servers"])), state["servers"], strict=True)
            self.get([server.restore(held) for server, held in pairs])
        if state["replica"] is not None:
            replica = self._engine.put(state["replica"])
            self.get([worker.restore(replica) for worker in self.workers])
        for rank, worker in enumerate(self.workers):
            then = rank if rank < len(state["steps"]) else 0
            self.get([worker.go_to(state["steps"][then]), worker.load_buffers(state["buffers"][then])])

    def end(self) -> None:
        """Kill the actors of this run, on an engine that lives on."""
        dead = self._dead()
        for actor in (*self.workers, *self.shards):
            if actor.name not in dead:
                self._engine.kill(actor)

    def _free_workers(self, needed: int, deadline: float) -> None:
        """Wait until at least ``needed`` workers are not late, or the time is over."""
        if self._late:
            enough = max(needed - (len(self.workers) - len(self._late)), 0)
            for name in self._await_living(self._late, enough, deadline):
                del self._late[name]

    def _await_living(self, refs: dict[str, Any], count: int, deadline: float) -> set[str]:
        """Return the names of living workers whose refs are done, ``count`` of them if time and lives allow."""
        while True:
            left = None if math.isinf(deadline) else max(deadline - self._engine.now(), 0.0)
            gone = len(set(refs) & self._dead())
            done, pending = self._engine.wait(refs.values(), min(count + gone, len(refs)), left)
            finished, dead = set(map(id, done)), self._dead()
            living = {name for name, ref in refs.items() if id(ref) in finished and name not in dead}
            if len(living) >= count or not pending or self._engine.now() >= deadline:
                return living

    def _dead(self) -> set[str]:
        """Return the names of those actors of this run that are dead; the engine may have run others before."""
        lost = set(map(id, self._engine.lost()))
        return {actor.name for actor in (*self.workers, *self.shards) if id(actor) in lost}


def _head(answer: Any) -> Any:
    """Return a ref that stands for the whole answer: the refs of one call are done together."""
    return answer[0] if isinstance(answer, list) else answer
