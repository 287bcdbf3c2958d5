"""Gather results from workers: a quorum, the first to finish, or all within a time limit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from chimera.core.counted import counted
from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, TooFewWorkersError
from chimera.training.cluster.heartbeat import HeartbeatMonitor

Enough: TypeAlias = Callable[[Collection[str]], bool]
"""Return whether the results of the workers with these names are enough."""


def _any(names: Collection[str]) -> bool:  # noqa: ARG001 - the signature of Enough
    return True


class Gather:
    """The part of a `TrainingCluster` that calls workers and keeps track of those that are still computing.

    Attributes
    ----------
    workers : living workers in rank order. A change replaces the list.
    unreported : events since the last report, as `Notifier.events` takes them. The caller that reports the events empties the
        list.
    continues : whether a round ends without the workers that die during it: on engine `federation` with ``min_nodes``.
    """

    unreported: list[tuple[str, str, str]]

    @property
    def workers(self) -> list[Any]:
        """The living workers, in rank order."""
        return self._workers

    @workers.setter
    def workers(self, workers: list[Any]) -> None:
        self._workers = workers
        self._by_name: dict[str, tuple[int, Any]] | None = None  # place and worker; there can be many

    def start_gathering(self, engine: Engine, monitor: HeartbeatMonitor, min_workers: int) -> None:
        """Start without stragglers."""
        self._engine, self._monitor, self._min_workers = engine, monitor, min_workers
        option = "min_nodes" if getattr(engine, "min_nodes", None) == min_workers else "min_workers"
        self.continues = getattr(engine, "min_nodes", None) is not None
        self._bound = f"fewer than {option} = {min_workers}"  # the larger one of both options
        self.unreported = []
        self._late: dict[str, Any] = {}  # refs of workers that still compute a result for which no caller waits
        # Workers that had finished when `first` last waited, and their refs.
        self._answers: deque[tuple[str, Any]] = deque()

    def _dead(self) -> set[str]:
        raise NotImplementedError

    def gather(self, ask: Callable[[Any], Any], quorum: float = 1.0, timeout_s: float | None = None) -> list[Any]:
        """Call every free worker, and return the results of a quorum in rank order.

        Parameters
        ----------
        ask : calls a worker and returns its refs.
        quorum : the share of the workers whose results are awaited, 0 to 1. With 1 and no time limit, the call does not wait,
            unless the run `continues`.
        timeout_s : seconds after which the results that have arrived are returned.

        Raises
        ------
        ActorLost : a run that `continues` has fewer than ``min_workers`` results.
        TooFewWorkersError : fewer than ``min_workers`` answered within ``timeout_s``.
        """
        if quorum == 1 and timeout_s is None:
            if self.continues:
                return [*self.soonest(self.workers, ask).values()]
            return [ask(worker) for worker in self.workers]
        answers = self._asked(self.workers, ask, max(math.ceil(quorum * len(self.workers)), 1), timeout_s)
        if len(answers) < self._min_workers:
            received = f"{len(answers)} of {len(self.workers)} workers answered in {timeout_s} s"
            raise TooFewWorkersError(f"{received}, {self._bound}")
        return [*answers.values()]

    def soonest(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Call the free workers among ``workers``, and return the first ``count`` results, by name, in rank order.

        Without ``count`` and ``timeout_s``, call all and wait for nothing. If the run `continues`, wait for all that do not
        die.

        Raises
        ------
        ActorLost : no worker answered, and at least one is dead. Also if a run that `continues` has too few results.
        TooFewWorkersError : no worker answered within ``timeout_s``.
        """
        if count is None and timeout_s is None:
            return self._of_survivors(workers, ask) if self.continues else {w.name: ask(w) for w in workers}
        return self.until(_any, workers, ask, count or len(workers), timeout_s)

    def _of_survivors(self, workers: Sequence[Any], ask: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the results of the workers that do not die; raise ActorLost if the round has to be repeated with others."""
        answers = self._asked(workers, ask, len(workers), None)
        if len(answers) < min(self._min_workers, len(workers)):
            raise ActorLost(
                f"{', '.join(sorted(self._dead()))} died: {counted(len(answers), 'worker')} left in the round"
            )
        return answers

    @property
    def departed(self) -> set[str]:
        """The names of the dead workers, without which a round of a run that `continues` ends; empty for other runs."""
        return self._dead() & {worker.name for worker in self.workers} if self.continues else set()

    def raise_departed(self) -> None:
        """Raise ActorLost if a worker has departed."""
        if departed := self.departed:
            raise ActorLost(f"{', '.join(sorted(departed))} died")

    def until(
        self,
        enough: Enough,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        least: int = 1,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Call the free workers among ``workers``, and return the results once there are ``least`` and they are ``enough``.

        Raises
        ------
        ActorLost : no worker answered, and at least one is dead.
        TooFewWorkersError : no worker answered within ``timeout_s``.
        """
        answers = self._asked(workers, ask, least, timeout_s, enough)
        if not answers:
            if dead := self._dead() & {worker.name for worker in workers}:
                raise ActorLost(f"{', '.join(sorted(dead))} died")
            raise TooFewWorkersError(f"none of {len(workers)} workers answered in {timeout_s} s: give them more time")
        return answers

    def _asked(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        count: int,
        timeout_s: float | None,
        enough: Enough = _any,
    ) -> dict[str, Any]:
        deadline = math.inf if timeout_s is None else self._engine.now() + timeout_s
        answers = {worker.name: ask(worker) for worker in self._ready(workers, count, timeout_s, enough)}
        heads = {name: _head(answer) for name, answer in answers.items()}
        done = self._await_living(heads, min(count, len(answers)), deadline, enough)
        self._late.update({name: head for name, head in heads.items() if name not in done})
        return {name: answer for name, answer in answers.items() if name in done}

    def _ready(self, workers: Sequence[Any], count: int, timeout_s: float | None, enough: Enough = _any) -> list[Any]:
        """Return the free workers, once there are enough or the time limit has passed."""
        deadline = math.inf if timeout_s is None else self._engine.now() + timeout_s
        # With a time limit, a late worker has already used up its time: do not wait for it again.
        if timeout_s is None:
            self._free(workers, count, deadline, enough)
        else:
            self._free(workers, 1, deadline)
        return [worker for worker in workers if worker.name not in self._late]

    def first(self, pending: Mapping[str, Any]) -> str:
        """Wait until a worker has answered, and return the name of the first one.

        Raises
        ------
        ActorLost : a worker is dead.
        """
        heads = {str(worker.name): _head(pending[worker.name]) for worker in self.workers if worker.name in pending}
        winner = self._next_answer(heads)
        if winner is None:
            done, _ = self._monitor.wait(heads.values(), 1)
            if dead := self._dead() & set(heads):
                raise ActorLost(f"{', '.join(sorted(dead))} died")
            names = {id(ref): name for name, ref in heads.items()}
            self._answers = deque((names[id(ref)], ref) for ref in done)
            winner, _ = self._answers.popleft()
        self._late = {name: ref for name, ref in heads.items() if name != winner}
        return winner

    def _next_answer(self, heads: Mapping[str, Any]) -> str | None:
        """Return the earliest further worker that had answered when `first` last waited: no new wait is needed."""
        while self._answers:
            name, ref = self._answers.popleft()
            if heads.get(name) is ref:
                return name
        return None

    def on_time(self, of: Collection[str] | None = None) -> list[Any]:
        """Return the living workers that are not busy with a call whose result is no longer awaited.

        ``of`` are the names of the workers to return, in rank order; by default all workers.
        """
        if self._late:
            for name in self._await_living(self._late, 0, self._engine.now()):
                del self._late[name]
        living = self.workers if of is None else self._living(of)
        return [worker for worker in living if worker.name not in self._late]

    def _living(self, names: Collection[str]) -> list[Any]:
        """Return the living workers with these names, in rank order."""
        if self._by_name is None:
            self._by_name = {worker.name: (place, worker) for place, worker in enumerate(self.workers)}
        found = sorted(map(self._by_name.__getitem__, self._by_name.keys() & names), key=itemgetter(0))
        return [worker for _, worker in found]

    def settle(self) -> None:
        """Wait for all stragglers, so that servers and workers hold the whole state of the run.

        If the state of the engine includes their work, do not wait: results for which no caller waits are dropped in any case.
        """
        if getattr(self._engine, "keeps_work", False):
            self._late = {}
        else:
            self._free(self.workers, len(self.workers), math.inf)

    def _free(self, workers: Sequence[Any], needed: int, deadline: float, enough: Enough = _any) -> None:
        """Wait until at least ``needed`` of the workers are free and they are ``enough``, or until the deadline."""
        names = {worker.name for worker in workers}
        late = {name: ref for name, ref in self._late.items() if name in names}
        if late:
            free = names - set(late)
            more = max(needed - len(free), 0)
            for name in self._await_living(late, more, deadline, lambda done: enough({*free, *done})):
                del self._late[name]

    def _await_living(self, refs: dict[str, Any], count: int, deadline: float, enough: Enough = _any) -> set[str]:
        """Return the names of living workers whose refs are done; fewer than ``count`` and ``enough`` only at the deadline."""
        while True:
            left = None if math.isinf(deadline) else max(deadline - self._engine.now(), 0.0)
            gone = len(set(refs) & self._dead())
            done, pending = self._monitor.wait(refs.values(), min(count + gone, len(refs)), left)
            finished, dead = set(map(id, done)), self._dead()
            living = {name for name, ref in refs.items() if id(ref) in finished and name not in dead}
            there = len(living) >= count
            if (there and enough(living)) or not pending or self._engine.now() >= deadline:
                return living
            if there:
                count = len(living) + 1


def _head(answer: Any) -> Any:
    """Return one ref of an answer: the refs of one call are done together."""
    return answer[0] if isinstance(answer, list) else answer
