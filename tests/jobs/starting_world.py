"""Clusters in virtual time, for the start of jobs: messages are late, lost, or come twice, and whoever acts may die of it.

The queue, `AttemptStart`, `WorkerLease` and the table of states are the real ones. Modelled are the network, the
processes, and the store, which keeps what was written. Two daemons with jobs of their own may share the seats, neither
knowing of the other.
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
MAX_DELAY_S, MAX_AWAY_S, NOTICED_S, BEAT_S = 6.0, 4.0, 0.5, 1.0
PARTIAL_S = LIMITS.max_lease_s + LIMITS.heartbeat_timeout_s + MAX_DELAY_S + MAX_AWAY_S + NOTICED_S + BEAT_S
"""So long at most an attempt has some of its seats, and not all of them begun."""
FAULTS_END_S, END_S = 20.0, 400.0


@dataclass
class Faults:
    """What goes wrong, as probabilities: of a message, and of the death of whoever has just acted."""

    lose: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    seat_dies: float = 0.0
    daemon_dies: float = 0.0
    driver_dies: float = 0.0
    refuses: float = 0.0


@dataclass
class Driver:
    """What runs a job once all have begun; it outlives its daemon."""

    attempt: Attempt
    workers: list[WorkerProcess]
    living: bool = True
    finished: bool = False


@dataclass
class WorkerProcess:
    """A life of a worker; the next one has another name."""

    name: str
    lease: WorkerLease = field(default_factory=lambda: WorkerLease(LIMITS))
    living: bool = True
    planned_s: float = -1.0
    since_s: float = 0.0
    over: set[Attempt] = field(default_factory=set)


class World:
    """One cluster from its beginning until nothing happens any more.

    Attributes
    ----------
    seen : how often what happened; who died in which phase, among it.
    """

    def __init__(self, seed: int) -> None:
        self.random = draws = random.Random(seed)
        chance = lambda most: draws.choice((0.0, draws.uniform(0, most)))  # noqa: E731
        self.faults = Faults(*(chance(most) for most in (0.25, 0.2, 0.15, 0.02, 0.03, 0.3, 0.05)))
        self.seen: Counter[str] = Counter()
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.holds: dict[Attempt, set[str]] = {}
        self.partial_since: dict[Attempt, float] = {}
        self.needed: dict[Attempt, int] = {}
        self.drivers: dict[str, Driver] = {}
        self.slots: list[WorkerProcess] = []
        self.lives = itertools.count()
        for slot in range(draws.randint(2, 4)):
            self.slots.append(self._born(slot))
        self.daemons = [Daemon(self, letter, draws.randint(2, 3)) for letter in "ab"[: draws.randint(1, 2)]]

    def run(self) -> None:
        while self._events:
            self.now_s, _, happen = heapq.heappop(self._events)
            assert self.now_s < END_S, "it never ends"
            happen()

    def later(self, delay_s: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), happen))

    def fate(self, chance: float) -> bool:
        return self.now_s < FAULTS_END_S and chance > 0 and self.random.random() < chance

    def transmit(self, arrive: Callable[[], object]) -> None:
        for _ in range(1 + self.fate(self.faults.twice)):
            if self.fate(self.faults.lose):
                self.seen["lost message"] += 1
                continue
            slow = self.fate(self.faults.slow)
            self.later(self.random.uniform(0, MAX_DELAY_S) if slow else self.random.expovariate(100), arrive)

    # --- seats

    def worker(self, name: str) -> WorkerProcess | None:
        return next((one for one in self.slots if one.name == name and one.living), None)

    def to_worker(self, process: WorkerProcess, message: ToWorker, daemon: Daemon) -> None:
        if process.living:
            if isinstance(message, Release):
                process.over.add(message.attempt)
            self._do(process, process.lease.receive(message, self.now_s), daemon)

    def vouch(self, process: WorkerProcess, attempt: Attempt, daemon: Daemon) -> None:
        if process.living:
            self._do(process, process.lease.heartbeat(attempt, self.now_s), daemon)

    def _do(self, process: WorkerProcess, what: Iterable[WorkerAction], daemon: Daemon) -> None:
        for one in what:
            if isinstance(one, CheckRequirements | ReceiveFiles):
                took_s = (
                    self.random.expovariate(50) if isinstance(one, CheckRequirements) else self.random.expovariate(2)
                )
                why = f"it has no {one.attempt.job}-stuff" if self.fate(self.faults.refuses) else ""
                permanent = bool(why) and self.random.random() < 0.2
                self.later(took_s, partial(self._did, process, one.attempt, why, permanent, daemon))
            elif isinstance(one, BeginAttempt):
                assert process.lease.attempt == one.attempt
            elif isinstance(one, EndAttempt):
                self._let_go(process, one.attempt)
            else:
                self.transmit(partial(daemon.hear, daemon.life, process.name, one))
        self._watch(process, daemon)
        if self.fate(self.faults.seat_dies):
            self._die(process)

    def _did(self, process: WorkerProcess, attempt: Attempt, why: str, permanent: bool, daemon: Daemon) -> None:
        if process.living:
            self._do(process, process.lease.completed(attempt, self.now_s, reason=why, permanent=permanent), daemon)

    def _watch(self, process: WorkerProcess, daemon: Daemon) -> None:
        """Check what is promised of one seat, and plan when its promise ends."""
        lease = process.lease
        if lease.attempt is None:
            assert lease.state is LeaseState.FREE
            return
        assert lease.attempt not in process.over, "it takes part in what it was released from"
        held = self.holds.setdefault(lease.attempt, set())
        if process.name not in held:
            held.add(process.name)
            process.since_s = self.now_s
        if lease.state is not LeaseState.STARTED:
            assert self.now_s - process.since_s <= LIMITS.max_lease_s + 1e-9, "a place was kept for too long"
        assert self.now_s <= lease.expires_s <= self.now_s + LIMITS.max_lease_s
        self._partial(lease.attempt)
        if lease.expires_s != process.planned_s:
            process.planned_s = lease.expires_s
            self.later(lease.expires_s - self.now_s, partial(self._tick, process, daemon))

    def _tick(self, process: WorkerProcess, daemon: Daemon) -> None:
        if process.living and self.now_s >= process.lease.expires_s:
            self._do(process, process.lease.tick(self.now_s), daemon)

    def _let_go(self, process: WorkerProcess, attempt: Attempt) -> None:
        process.over.add(attempt)
        self.holds.get(attempt, set()).discard(process.name)
        self._partial(attempt)

    def _partial(self, attempt: Attempt) -> None:
        held = self.holds.get(attempt, set())
        begun = [name for name in held if (one := self.worker(name)) and one.lease.state is LeaseState.STARTED]
        if not held or len(begun) == self.needed[attempt]:
            since_s = self.partial_since.pop(attempt, self.now_s)
            assert self.now_s - since_s <= PARTIAL_S, "an attempt had a part of the cluster for too long"
        else:
            self.partial_since.setdefault(attempt, self.now_s)
            self.seen["two jobs hold a part"] += len({other.job for other in self.partial_since}) > 1

    def _born(self, slot: int) -> WorkerProcess:
        return WorkerProcess(f"w{slot}.{next(self.lives)}")

    def _die(self, process: WorkerProcess) -> None:
        lease = process.lease
        self.seen[f"seat died {lease.state.value}"] += 1
        process.living = False
        if lease.attempt is not None:
            self._let_go(process, lease.attempt)
        self.later(self.random.uniform(0.1, MAX_AWAY_S), partial(self._replace, process))
        for daemon in self.daemons:
            self.later(self.random.uniform(0, NOTICED_S), partial(daemon.lost, daemon.life, process.name))

    def _replace(self, process: WorkerProcess) -> None:
        at = self.slots.index(process)
        self.slots[at] = self._born(at)
        for daemon in self.daemons:
            self.later(0.0, partial(daemon.look, daemon.life))

    # --- drivers

    def launch(self, daemon: Daemon, attempt: Attempt, names: tuple[str, ...]) -> None:
        workers = [one for name in names if (one := self.worker(name))]
        assert all(one.lease.attempt == attempt and one.lease.state is LeaseState.STARTED for one in workers), (
            "not all began"
        )
        old = self.drivers.get(attempt.job)
        assert old is None or not old.living, "a job runs twice"
        assert old is None or not old.finished, "a job that is done runs again"
        driver = self.drivers[attempt.job] = Driver(attempt, workers)
        self.seen["launched"] += 1
        self._vouch_all(driver, daemon)
        self.later(self.random.uniform(0.2, 4.0), partial(self._finish, driver, daemon))

    def _vouch_all(self, driver: Driver, daemon: Daemon) -> None:
        if driver.living:
            for process in driver.workers:
                self.vouch(process, driver.attempt, daemon)
            self.later(BEAT_S, partial(self._vouch_all, driver, daemon))

    def _finish(self, driver: Driver, daemon: Daemon) -> None:
        if driver.living:
            driver.living = False
            driver.finished = not self.fate(self.faults.driver_dies)
            self.seen["driver died"] += not driver.finished
            self.later(self.random.uniform(0, NOTICED_S), partial(daemon.reap, daemon.life))


class Daemon:
    """Store, queue and coordinators of one cluster. All but the store is forgotten when it dies."""

    def __init__(self, world: World, letter: str, jobs: int) -> None:
        self.world, self.life, self.living = world, 0, True
        self.store: dict[str, Job] = {}
        self.events: list[JobEvent] = []
        self.starts: dict[str, AttemptStart] = {}
        self.planned_s: dict[AttemptStart, float] = {}
        self.looks_s = -1.0
        draws = world.random
        for number in range(jobs):
            name = f"{1 + number}{'' if letter == 'a' else '0'}"
            workers = draws.randint(1, len(world.slots))
            given = Submission(name=name, user=draws.choice("xy"), experiment="x", workers=workers)
            self.store[name] = Job(id=name, submission=given, since_s=0.0, submitted_s=0.0)
        world.later(draws.uniform(0, 0.1), partial(self.look, 0))

    def apply(self, name: str, event: Event, attempt: int, reason: str, workers: tuple[str, ...] = ()) -> Job | None:
        """Do what the store does."""
        old = self.store[name]
        if old.attempt != attempt:
            return None
        try:
            new = apply_event(old, event, now_s=self.world.now_s, reason=reason, workers=workers)
        except ConflictError:
            assert not old.active
            return None
        assert reason or event in (Event.PICKED, Event.COMMITTED, Event.ENDED), "no reason was told"
        self.store[name] = new
        self.events.append(JobEvent(name, self.world.now_s, event, new.state, new.attempt, reason))
        self.world.seen[event.value] += 1
        return new

    def look(self, life: int) -> None:
        """Begin what the queue says."""
        if life != self.life or not self.living:
            return
        world = self.world
        mine = {worker for start in self.starts.values() for worker in self.store[start.attempt.job].workers}
        living = [one.name for one in world.slots if one.living]
        free = [name for name in living if name not in mine]
        waiting = [job for job in self.store.values() if job.state is State.QUEUED]
        active = [job for job in self.store.values() if job.state in ACTIVE]
        settings = QueueSettings(patience_s=5.0)
        for job in schedule(
            waiting, active, {}, [], free=len(free), total=len(living), now_s=world.now_s, settings=settings
        ).start:
            names = tuple(world.random.sample(free, job.submission.workers))
            free = [name for name in free if name not in names]
            picked = self.apply(job.id, Event.PICKED, job.attempt, "", names)
            assert picked is not None
            attempt = Attempt(job.id, picked.attempt)
            world.needed[attempt] = len(names)
            self.starts[job.id] = AttemptStart(
                attempt, {name: {} for name in names}, Requirements(), LIMITS, world.now_s
            )
            self.do(self.starts[job.id], self.starts[job.id].tick(world.now_s))
            if not self.living:
                return
        still = [job for job in self.store.values() if job.state is State.QUEUED]
        if still and self.looks_s <= world.now_s:
            self.looks_s = max(world.now_s + 0.3, min(job.since_s + retry_delay_s(job.refused) for job in still))
            world.later(self.looks_s - world.now_s, partial(self.look, self.life))

    def hear(self, life: int, worker: str, answer: ToCoordinator) -> None:
        start = self.starts.get(answer.attempt.job)
        if life == self.life and self.living and start is not None:
            self.do(start, start.receive(worker, answer, self.world.now_s))

    def lost(self, life: int, worker: str) -> None:
        for start in list(self.starts.values()):
            if life == self.life and self.living:
                self.do(start, start.worker_lost(worker, "it died"))

    def tick(self, life: int, start: AttemptStart) -> None:
        if life == self.life and self.living and self.starts.get(start.attempt.job) is start:
            self.do(start, start.tick(self.world.now_s))

    def reap(self, life: int) -> None:
        """Take over the ends of drivers."""
        for start in list(self.starts.values()):
            driver = self.world.drivers.get(start.attempt.job)
            if (
                life != self.life
                or not self.living
                or driver is None
                or driver.attempt != start.attempt
                or driver.living
            ):
                continue
            event, why = (Event.ENDED, "") if driver.finished else (Event.BROKE, "the driver died")
            self.apply(start.attempt.job, event, start.attempt.number, why)
            self.do(start, start.stop(why or "it is done"))
            self.forget(start)

    def forget(self, start: AttemptStart) -> None:
        self.starts.pop(start.attempt.job, None)
        self.world.later(0.0, partial(self.look, self.life))

    def do(self, start: AttemptStart, acts: list[CoordinatorAction]) -> None:
        world = self.world
        for act in acts:
            if not self.living:
                return
            if isinstance(act, Send):
                process = next((one for one in world.slots if one.name == act.worker), None)
                if process is not None:
                    world.transmit(partial(world.to_worker, process, act.message, self))
            elif isinstance(act, RecordCommit):
                told = self.apply(act.attempt.job, Event.COMMITTED, act.attempt.number, "")
                assert told is not None
                if not self._dies(start):
                    self.do(start, start.commit_recorded(world.now_s))
            elif isinstance(act, AllStarted):
                if not self._dies(start):
                    world.launch(self, act.attempt, self.store[act.attempt.job].workers)
            elif isinstance(act, AttemptEnded):
                self._end(act)
                self.forget(start)
            if self._dies(start):
                return
        if start.next_tick_s < math.inf and self.planned_s.get(start) != start.next_tick_s:
            self.planned_s[start] = start.next_tick_s
            world.later(start.next_tick_s - world.now_s, partial(self.tick, self.life, start))

    def _end(self, over: AttemptEnded) -> None:
        driver = self.world.drivers.get(over.attempt.job)
        if driver is not None and driver.attempt == over.attempt:
            if driver.finished:  # it had ended before anybody noticed what was lost
                self.apply(over.attempt.job, Event.ENDED, over.attempt.number, "")
                return
            driver.living = False
        self.apply(over.attempt.job, over.event, over.attempt.number, over.reason)

    def _dies(self, start: AttemptStart) -> bool:
        world = self.world
        if self.living and world.fate(world.faults.daemon_dies):
            world.seen[f"daemon died {start.phase.value}"] += 1
            self.living = False
            self.starts.clear()
            world.later(world.random.uniform(0.1, MAX_AWAY_S), self._restart)
        return not self.living

    def _restart(self) -> None:
        """Find the jobs as the last daemon left them."""
        self.life += 1
        self.living, self.looks_s = True, -1.0
        world = self.world
        for job in [job for job in self.store.values() if job.state in ACTIVE]:
            attempt = Attempt(job.id, job.attempt)
            start = AttemptStart.adopted(attempt, job.workers, LIMITS)
            driver = world.drivers.get(job.id)
            own = driver if driver is not None and driver.attempt == attempt else None
            seats_live = all(world.worker(name) for name in job.workers)
            if own is not None and own.finished:
                self.apply(job.id, Event.ENDED, job.attempt, "")
            elif job.state is State.STARTING:
                self.apply(job.id, Event.REFUSED, job.attempt, "the daemon died while it began")
            elif own is not None and own.living and seats_live:
                self.starts[job.id] = start
                world.seen["adopted"] += 1
                continue
            else:
                if own is not None:
                    own.living = False
                self.apply(job.id, Event.BROKE, job.attempt, "the daemon died, and the job with it")
            self.do(start, start.stop("its daemon has died"))
            if not self.living:
                return
        self.look(self.life)
        self.reap(self.life)


def check_end(world: World) -> None:
    """Nothing is under way any more: every seat is free, every job over once, and it is told why."""
    assert all(process.lease.state is LeaseState.FREE for process in world.slots if process.living)
    assert not world.partial_since
    for daemon in world.daemons:
        for job in daemon.store.values():
            ends = [event for event in daemon.events if event.job == job.id and event.state in TERMINAL]
            assert len(ends) == 1
            assert job.state is ends[0].state
            driver = world.drivers.get(job.id)
            assert (job.state is State.DONE) == (driver is not None and driver.finished)
            assert job.state is State.DONE or job.reason
