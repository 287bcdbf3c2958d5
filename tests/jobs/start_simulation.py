"""Simulated clusters in virtual time for the start of jobs: messages are lost, delayed or duplicated, and processes fail.

The queue, `AttemptStart`, `WorkerLease` and the table of states are the real ones. The network, the processes and a persistent
store are simulated. Two daemons with their own jobs may share the workers without knowing each other.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from chimera.core.errors import ConflictError
from chimera.jobs.scheduling.attempt_start import AttemptStart
from chimera.jobs.scheduling.messages import (
    AllStarted,
    Attempt,
    AttemptEnded,
    BeginAttempt,
    CheckRequirements,
    CoordinatorAction,
    EndAttempt,
    Limits,
    ReceiveFiles,
    RecordCommit,
    Release,
    Requirements,
    Send,
    ToCoordinator,
    ToWorker,
)
from chimera.jobs.scheduling.queue import QueueSettings, retry_delay_s, schedule
from chimera.jobs.store.records import Job, JobEvent, Submission, apply_event
from chimera.jobs.store.states import ACTIVE, TERMINAL, Event, State
from chimera.jobs.worker.lease import LeaseState, WorkerAction, WorkerLease

LIMITS = Limits(reserve_s=1.0, prepare_s=3.0, commit_s=1.5, heartbeat_timeout_s=2.5, resend_s=0.4)
MAX_DELAY_S, MAX_RESTART_S, DETECTION_S, HEARTBEAT_S = 6.0, 4.0, 0.5, 1.0
PARTIAL_S = LIMITS.max_lease_s + LIMITS.heartbeat_timeout_s + MAX_DELAY_S + MAX_RESTART_S + DETECTION_S + HEARTBEAT_S
"""Longest time that an attempt has some of its workers without all of them started."""
FAULTS_END_S, END_S = 20.0, 400.0


@dataclass
class Faults:
    """Probabilities of faults: of each message, and of a failure of a process after each of its actions."""

    lost: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    worker_dies: float = 0.0
    daemon_dies: float = 0.0
    driver_dies: float = 0.0
    refuses: float = 0.0


@dataclass
class Driver:
    """Driver of an attempt whose workers have all started; it survives its daemon."""

    attempt: Attempt
    workers: list[WorkerProcess]
    alive: bool = True
    finished: bool = False


@dataclass
class WorkerProcess:
    """Process of a worker; a restarted worker has another name."""

    name: str
    lease: WorkerLease = field(default_factory=lambda: WorkerLease(LIMITS))
    alive: bool = True
    planned_s: float = -1.0
    since_s: float = 0.0
    ended: set[Attempt] = field(default_factory=set)


class SimulatedCluster:
    """One cluster, from its start until there are no more events.

    Attributes
    ----------
    seen : number of occurrences of each event, including failures by phase.
    """

    def __init__(self, seed: int) -> None:
        self.random = draws = random.Random(seed)
        chance = lambda maximum: draws.choice((0.0, draws.uniform(0, maximum)))  # noqa: E731
        self.faults = Faults(*(chance(maximum) for maximum in (0.25, 0.2, 0.15, 0.02, 0.03, 0.3, 0.05)))
        self.seen: Counter[str] = Counter()
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.holds: dict[Attempt, set[str]] = {}
        self.partial_since_s: dict[Attempt, float] = {}
        self.needed: dict[Attempt, int] = {}
        self.drivers: dict[str, Driver] = {}
        self.processes: list[WorkerProcess] = []
        self.process_numbers = itertools.count()
        for index in range(draws.randint(2, 4)):
            self.processes.append(self._new_process(index))
        self.daemons = [Daemon(self, letter, draws.randint(2, 3)) for letter in "ab"[: draws.randint(1, 2)]]

    def run(self) -> None:
        while self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            assert self.now_s < END_S, "the simulation does not end"
            event()

    def later(self, delay_s: float, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), event))

    def occurs(self, chance: float) -> bool:
        return self.now_s < FAULTS_END_S and chance > 0 and self.random.random() < chance

    def transmit(self, arrive: Callable[[], object]) -> None:
        for _ in range(1 + self.occurs(self.faults.duplicate)):
            if self.occurs(self.faults.lost):
                self.seen["lost message"] += 1
                continue
            slow = self.occurs(self.faults.slow)
            self.later(self.random.uniform(0, MAX_DELAY_S) if slow else self.random.expovariate(100), arrive)

    # --- workers

    def worker(self, name: str) -> WorkerProcess | None:
        return next((one for one in self.processes if one.name == name and one.alive), None)

    def to_worker(self, process: WorkerProcess, message: ToWorker, daemon: Daemon) -> None:
        if process.alive:
            if isinstance(message, Release):
                process.ended.add(message.attempt)
            self._do(process, process.lease.receive(message, self.now_s), daemon)

    def heartbeat(self, process: WorkerProcess, attempt: Attempt, daemon: Daemon) -> None:
        if process.alive:
            self._do(process, process.lease.heartbeat(attempt, self.now_s), daemon)

    def _do(self, process: WorkerProcess, what: Iterable[WorkerAction], daemon: Daemon) -> None:
        for one in what:
            if isinstance(one, CheckRequirements | ReceiveFiles):
                took_s = (
                    self.random.expovariate(50) if isinstance(one, CheckRequirements) else self.random.expovariate(2)
                )
                why = f"it has no {one.attempt.job}-stuff" if self.occurs(self.faults.refuses) else ""
                permanent = bool(why) and self.random.random() < 0.2
                self.later(took_s, partial(self._did, process, one.attempt, why, permanent, daemon))
            elif isinstance(one, BeginAttempt):
                assert process.lease.attempt == one.attempt
            elif isinstance(one, EndAttempt):
                self._release(process, one.attempt)
            else:
                self.transmit(partial(daemon.receive, daemon.generation, process.name, one))
        self._check_lease(process, daemon)
        if self.occurs(self.faults.worker_dies):
            self._die(process)

    def _did(self, process: WorkerProcess, attempt: Attempt, why: str, permanent: bool, daemon: Daemon) -> None:
        if process.alive:
            self._do(process, process.lease.completed(attempt, self.now_s, reason=why, permanent=permanent), daemon)

    def _check_lease(self, process: WorkerProcess, daemon: Daemon) -> None:
        """Check the invariants of a worker's lease, and schedule its expiry."""
        lease = process.lease
        if lease.attempt is None:
            assert lease.state is LeaseState.FREE
            return
        assert lease.attempt not in process.ended, "a worker works for an attempt that released it"
        held = self.holds.setdefault(lease.attempt, set())
        if process.name not in held:
            held.add(process.name)
            process.since_s = self.now_s
        if lease.state is not LeaseState.STARTED:
            assert self.now_s - process.since_s <= LIMITS.max_lease_s + 1e-9, "a worker was reserved for too long"
        assert self.now_s <= lease.expires_s <= self.now_s + LIMITS.max_lease_s
        self._check_partial(lease.attempt)
        if lease.expires_s != process.planned_s:
            process.planned_s = lease.expires_s
            self.later(lease.expires_s - self.now_s, partial(self._tick, process, daemon))

    def _tick(self, process: WorkerProcess, daemon: Daemon) -> None:
        if process.alive and self.now_s >= process.lease.expires_s:
            self._do(process, process.lease.tick(self.now_s), daemon)

    def _release(self, process: WorkerProcess, attempt: Attempt) -> None:
        process.ended.add(attempt)
        self.holds.get(attempt, set()).discard(process.name)
        self._check_partial(attempt)

    def _check_partial(self, attempt: Attempt) -> None:
        held = self.holds.get(attempt, set())
        begun = [name for name in held if (one := self.worker(name)) and one.lease.state is LeaseState.STARTED]
        if not held or len(begun) == self.needed[attempt]:
            since_s = self.partial_since_s.pop(attempt, self.now_s)
            assert self.now_s - since_s <= PARTIAL_S, "an attempt had a part of the cluster for too long"
        else:
            self.partial_since_s.setdefault(attempt, self.now_s)
            self.seen["two jobs hold a part"] += len({other.job for other in self.partial_since_s}) > 1

    def _new_process(self, index: int) -> WorkerProcess:
        return WorkerProcess(f"w{index}.{next(self.process_numbers)}")

    def _die(self, process: WorkerProcess) -> None:
        lease = process.lease
        self.seen[f"worker died {lease.state.value}"] += 1
        process.alive = False
        if lease.attempt is not None:
            self._release(process, lease.attempt)
        self.later(self.random.uniform(0.1, MAX_RESTART_S), partial(self._replace, process))
        for daemon in self.daemons:
            self.later(self.random.uniform(0, DETECTION_S), partial(daemon.lost, daemon.generation, process.name))

    def _replace(self, process: WorkerProcess) -> None:
        at = self.processes.index(process)
        self.processes[at] = self._new_process(at)
        for daemon in self.daemons:
            self.later(0.0, partial(daemon.schedule_jobs, daemon.generation))

    # --- drivers

    def launch(self, daemon: Daemon, attempt: Attempt, names: tuple[str, ...]) -> None:
        workers = [one for name in names if (one := self.worker(name))]
        assert all(one.lease.attempt == attempt and one.lease.state is LeaseState.STARTED for one in workers), (
            "not all began"
        )
        old = self.drivers.get(attempt.job)
        assert old is None or not old.alive, "a job runs twice"
        assert old is None or not old.finished, "a finished job runs again"
        driver = self.drivers[attempt.job] = Driver(attempt, workers)
        self.seen["launched"] += 1
        self._send_heartbeats(driver, daemon)
        self.later(self.random.uniform(0.2, 4.0), partial(self._finish, driver, daemon))

    def _send_heartbeats(self, driver: Driver, daemon: Daemon) -> None:
        if driver.alive:
            for process in driver.workers:
                self.heartbeat(process, driver.attempt, daemon)
            self.later(HEARTBEAT_S, partial(self._send_heartbeats, driver, daemon))

    def _finish(self, driver: Driver, daemon: Daemon) -> None:
        if driver.alive:
            driver.alive = False
            driver.finished = not self.occurs(self.faults.driver_dies)
            self.seen["driver died"] += not driver.finished
            self.later(self.random.uniform(0, DETECTION_S), partial(daemon.collect_drivers, daemon.generation))


class Daemon:
    """Store, queue and coordinators of one cluster. Only the store survives a failure."""

    def __init__(self, cluster: SimulatedCluster, letter: str, jobs: int) -> None:
        self.cluster, self.generation, self.alive = cluster, 0, True
        self.store: dict[str, Job] = {}
        self.events: list[JobEvent] = []
        self.starts: dict[str, AttemptStart] = {}
        self.planned_s: dict[AttemptStart, float] = {}
        self.next_schedule_s = -1.0
        draws = cluster.random
        for number in range(jobs):
            name = f"{1 + number}{'' if letter == 'a' else '0'}"
            workers = draws.randint(1, len(cluster.processes))
            given = Submission(name=name, user=draws.choice("xy"), experiment="x", workers=workers)
            self.store[name] = Job(id=name, submission=given, since_s=0.0, submitted_s=0.0)
        cluster.later(draws.uniform(0, 0.1), partial(self.schedule_jobs, 0))

    def apply(self, name: str, event: Event, attempt: int, reason: str, workers: tuple[str, ...] = ()) -> Job | None:
        """Apply an event as the store does."""
        old = self.store[name]
        if old.attempt != attempt:
            return None
        try:
            new = apply_event(old, event, now_s=self.cluster.now_s, reason=reason, workers=workers)
        except ConflictError:
            assert not old.active
            return None
        assert reason or event in (Event.PICKED, Event.COMMITTED, Event.ENDED), "there is no reason"
        self.store[name] = new
        self.events.append(JobEvent(name, self.cluster.now_s, event, new.state, new.attempt, reason))
        self.cluster.seen[event.value] += 1
        return new

    def schedule_jobs(self, generation: int) -> None:
        """Start the jobs that the queue selects."""
        if generation != self.generation or not self.alive:
            return
        cluster = self.cluster
        own = {worker for start in self.starts.values() for worker in self.store[start.attempt.job].workers}
        alive = [one.name for one in cluster.processes if one.alive]
        free = [name for name in alive if name not in own]
        waiting = [job for job in self.store.values() if job.state is State.QUEUED]
        active = [job for job in self.store.values() if job.state in ACTIVE]
        settings = QueueSettings(patience_s=5.0)
        for job in schedule(
            waiting, active, {}, [], free=len(free), total=len(alive), now_s=cluster.now_s, settings=settings
        ).start:
            names = tuple(cluster.random.sample(free, job.submission.workers))
            free = [name for name in free if name not in names]
            picked = self.apply(job.id, Event.PICKED, job.attempt, "", names)
            assert picked is not None
            attempt = Attempt(job.id, picked.attempt)
            cluster.needed[attempt] = len(names)
            self.starts[job.id] = AttemptStart(
                attempt, {name: {} for name in names}, Requirements(), LIMITS, cluster.now_s
            )
            self.do(self.starts[job.id], self.starts[job.id].tick(cluster.now_s))
            if not self.alive:
                return
        still = [job for job in self.store.values() if job.state is State.QUEUED]
        if still and self.next_schedule_s <= cluster.now_s:
            self.next_schedule_s = max(
                cluster.now_s + 0.3, min(job.since_s + retry_delay_s(job.refused) for job in still)
            )
            cluster.later(self.next_schedule_s - cluster.now_s, partial(self.schedule_jobs, self.generation))

    def receive(self, generation: int, worker: str, answer: ToCoordinator) -> None:
        start = self.starts.get(answer.attempt.job)
        if generation == self.generation and self.alive and start is not None:
            self.do(start, start.receive(worker, answer, self.cluster.now_s))

    def lost(self, generation: int, worker: str) -> None:
        for start in list(self.starts.values()):
            if generation == self.generation and self.alive:
                self.do(start, start.worker_lost(worker, "it died"))

    def tick(self, generation: int, start: AttemptStart) -> None:
        if generation == self.generation and self.alive and self.starts.get(start.attempt.job) is start:
            self.do(start, start.tick(self.cluster.now_s))

    def collect_drivers(self, generation: int) -> None:
        """Record the outcomes of ended drivers."""
        for start in list(self.starts.values()):
            driver = self.cluster.drivers.get(start.attempt.job)
            if (
                generation != self.generation
                or not self.alive
                or driver is None
                or driver.attempt != start.attempt
                or driver.alive
            ):
                continue
            event, why = (Event.ENDED, "") if driver.finished else (Event.BROKE, "the driver died")
            self.apply(start.attempt.job, event, start.attempt.number, why)
            self.do(start, start.stop(why or "it is done"))
            self.drop(start)

    def drop(self, start: AttemptStart) -> None:
        self.starts.pop(start.attempt.job, None)
        self.cluster.later(0.0, partial(self.schedule_jobs, self.generation))

    def do(self, start: AttemptStart, acts: list[CoordinatorAction]) -> None:
        cluster = self.cluster
        for act in acts:
            if not self.alive:
                return
            if isinstance(act, Send):
                process = next((one for one in cluster.processes if one.name == act.worker), None)
                if process is not None:
                    cluster.transmit(partial(cluster.to_worker, process, act.message, self))
            elif isinstance(act, RecordCommit):
                updated = self.apply(act.attempt.job, Event.COMMITTED, act.attempt.number, "")
                assert updated is not None
                if not self._dies(start):
                    self.do(start, start.commit_recorded(cluster.now_s))
            elif isinstance(act, AllStarted):
                if not self._dies(start):
                    cluster.launch(self, act.attempt, self.store[act.attempt.job].workers)
            elif isinstance(act, AttemptEnded):
                self._end(act)
                self.drop(start)
            if self._dies(start):
                return
        if start.next_tick_s < math.inf and self.planned_s.get(start) != start.next_tick_s:
            self.planned_s[start] = start.next_tick_s
            cluster.later(start.next_tick_s - cluster.now_s, partial(self.tick, self.generation, start))

    def _end(self, ended: AttemptEnded) -> None:
        driver = self.cluster.drivers.get(ended.attempt.job)
        if driver is not None and driver.attempt == ended.attempt:
            if driver.finished:  # it ended before the loss was detected
                self.apply(ended.attempt.job, Event.ENDED, ended.attempt.number, "")
                return
            driver.alive = False
        self.apply(ended.attempt.job, ended.event, ended.attempt.number, ended.reason)

    def _dies(self, start: AttemptStart) -> bool:
        cluster = self.cluster
        if self.alive and cluster.occurs(cluster.faults.daemon_dies):
            cluster.seen[f"daemon died {start.phase.value}"] += 1
            self.alive = False
            self.starts.clear()
            cluster.later(cluster.random.uniform(0.1, MAX_RESTART_S), self._restart)
        return not self.alive

    def _restart(self) -> None:
        """Recover the jobs of the last daemon."""
        self.generation += 1
        self.alive, self.next_schedule_s = True, -1.0
        cluster = self.cluster
        for job in [job for job in self.store.values() if job.state in ACTIVE]:
            attempt = Attempt(job.id, job.attempt)
            start = AttemptStart.adopted(attempt, job.workers, LIMITS)
            driver = cluster.drivers.get(job.id)
            own = driver if driver is not None and driver.attempt == attempt else None
            workers_alive = all(cluster.worker(name) for name in job.workers)
            if own is not None and own.finished:
                self.apply(job.id, Event.ENDED, job.attempt, "")
            elif job.state is State.STARTING:
                self.apply(job.id, Event.REFUSED, job.attempt, "the daemon died while the job started")
            elif own is not None and own.alive and workers_alive:
                self.starts[job.id] = start
                cluster.seen["adopted"] += 1
                continue
            else:
                if own is not None:
                    own.alive = False
                self.apply(job.id, Event.BROKE, job.attempt, "the daemon died, and the job with it")
            self.do(start, start.stop("its daemon has died"))
            if not self.alive:
                return
        self.schedule_jobs(self.generation)
        self.collect_drivers(self.generation)


def check_end(cluster: SimulatedCluster) -> None:
    """Check that no attempt is active: every worker is free, and every job ended once, with a reason."""
    assert all(process.lease.state is LeaseState.FREE for process in cluster.processes if process.alive)
    assert not cluster.partial_since_s
    for daemon in cluster.daemons:
        for job in daemon.store.values():
            ends = [event for event in daemon.events if event.job == job.id and event.state in TERMINAL]
            assert len(ends) == 1
            assert job.state is ends[0].state
            driver = cluster.drivers.get(job.id)
            assert (job.state is State.DONE) == (driver is not None and driver.finished)
            assert job.state is State.DONE or job.reason
