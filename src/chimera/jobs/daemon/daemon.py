"""What looks after the jobs of one machine: it takes them on, starts each on free slots, and takes its end into the store.

Whatever it has to know stands in the store, in the folders of jobs and with the slots, so that it may die at any moment: the
next one reads the store, hears from the slots what they hold, and sees by its lock whether a job's driver lives.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

import msgspec

from chimera.core.errors import ChimeraError, NoSpaceError
from chimera.jobs.cluster.connection import Connection, Hello, to_slot
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.cluster.log import log
from chimera.jobs.daemon.deletion import EVERY_S, forget
from chimera.jobs.daemon.driver_shutdown import Ending
from chimera.jobs.driver.progress_file import fraction_of
from chimera.jobs.scheduling.attempt_start import Phase, Start
from chimera.jobs.scheduling.messages import Act, Attempt, Decide, Limits, Needs, Over, Release, Send, ToCoordinator
from chimera.jobs.scheduling.queue import Rules, choose
from chimera.jobs.store.records import Job, row_of
from chimera.jobs.store.states import OVER, Event, State
from chimera.jobs.store.store import Store
from chimera.web.keeping import keep_s

LOOK_S = 0.05
"""How often it looks whether drivers have ended."""
_PROGRESS_S = 0.5
_COLUMNS = ("role", "name", "pid", "state", "job")
_EVENTS = {"done": Event.ENDED, "failed": Event.FAILED, "broke": Event.BROKE, "refused": Event.REFUSED}
_LOOK_FOR_SPACE_S = 1.0
_APPEAR_S = 5.0  # so long a new daemon waits for the slots of the jobs that it finds running


class Daemon:
    """The coordinator of one cluster.

    Parameters
    ----------
    slots : the socket on which slots come.
    """

    def __init__(self, folder: ClusterFolder, options: Options, slots: socket.socket, limits: Limits) -> None:
        self.folder, self.options = folder, options
        self.store = Store(folder.store)
        self.waits: dict[str, str] = {}
        self.trouble = ""
        self._full: NoSpaceError | None = None
        self.slots: dict[str, Hello] = {}
        self._limits, self._listener = limits, slots
        self._rules = Rules(workers_per_user=options.limit_per_user or 0)
        self._connections: dict[str, Connection[Any]] = {}
        self._starts: dict[str, Start] = {}
        self._ending: dict[str, Ending] = {}
        self._lock, self._woken, self._stopped = threading.RLock(), threading.Event(), threading.Event()
        self._began_s, self._progress_s = time.monotonic(), 0.0
        self._take_up()

    def wake(self) -> None:
        """Look at the store at once: somebody has changed it."""
        self._woken.set()

    def begin(self) -> None:
        """Work, in threads of its own."""
        keeping = [] if self.options.keep_days is None else [self._forget]
        for work in (self._accept, self._loop, *keeping):
            threading.Thread(target=work, name=f"chimera {work.__name__}", daemon=True).start()

    def row_of(self, job: Job) -> dict[str, Any]:
        """Return the row of a job, with the reason why it waits."""
        return row_of(job, self.waits.get(job.id, "") or (self.trouble if job.state not in OVER else ""))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each process of the cluster that the daemon knows of."""
        host = socket.gethostname()
        with self._lock:
            busy = {name: job.id for job in self._under_way() for name in job.workers}
            rows: list[tuple[str, str, int, str, str | None]] = [
                ("supervisor", "supervisor", os.getppid(), "up", None),
                ("daemon", "daemon", os.getpid(), self.trouble or "up", None),
            ]
            rows += [
                ("worker", name, slot.pid, "busy" if name in busy else "free", busy.get(name))
                for name, slot in sorted(self.slots.items())
            ]
            for job in self.store.jobs((State.RUNNING,)):
                pid = self.folder.job(job.id).driver()
                if pid is not None:
                    rows.append(("driver", f"job {job.id}", pid, "running", job.id))
        return [dict(zip(_COLUMNS, row, strict=True)) | {"host": host} for row in rows]

    def _take_up(self) -> None:
        """Find out, from the store, what an earlier daemon has left under way."""
        now_s = time.time()
        for job in self.store.jobs((State.STARTING,)):
            why = "the daemon ended while it began"
            self.store.apply(job.id, Event.REFUSED, attempt=job.attempt, reason=why, now_s=now_s)
        running = self.store.jobs((State.RUNNING,))
        for job in running:
            self._starts[job.id] = Start.adopted(Attempt(job.id, job.attempt), job.workers, self._limits)
        for lock in self.folder.path.glob("jobs/*/driver.lock"):
            if lock.parent.name not in self._starts:
                self._end(Attempt(lock.parent.name, 0))

    def _forget(self) -> None:
        after_s = keep_s(self.options.keep_days)
        assert after_s is not None
        while not self._stopped.is_set():
            try:
                forget(self.folder, self.store, after_s, self._rules.memory_s)
            except (ChimeraError, OSError) as error:  # a full disk, say: the next look tries again
                log(f"nothing could be forgotten: {error}")
            self._stopped.wait(EVERY_S)

    def _loop(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait(LOOK_S)
            self._woken.clear()
            try:
                with self._lock:
                    if self._full is not None:
                        raise self._full
                    self._step()
            except NoSpaceError as error:
                self._await_space(error)
            except Exception:  # better dead than hung: the next one takes up what stands in the store
                sys.excepthook(*sys.exc_info())
                os._exit(1)

    def _await_space(self, error: NoSpaceError) -> None:
        """Answer who asks until the disk has room; then end, since the step that failed left only the store as it should be."""
        self.trouble = f"{error}; free some space"
        log(f"the daemon waits: {self.trouble}")
        while not self._stopped.wait(_LOOK_FOR_SPACE_S):
            with contextlib.suppress(NoSpaceError):
                self.store.check_space()
                log("the disk has room again: the daemon is started anew")
                os._exit(1)

    def _step(self) -> None:
        now_s = time.monotonic()
        under_way = {job.id: job for job in self._under_way()}
        for start in list(self._starts.values()):
            job = under_way.get(start.attempt.job)
            if job is None or job.attempt != start.attempt.number:
                self._drop(start, "it was cancelled")
                continue
            self._act(start, start.tick(now_s))
        if now_s - self._began_s > _APPEAR_S:
            for start in list(self._starts.values()):
                for name in under_way[start.attempt.job].workers if start.attempt.job in under_way else ():
                    if name not in self._connections:
                        self._act(start, start.lost(name, "it has not come back"))
        self._look_at_drivers(now_s)
        for ending in list(self._ending.values()):
            self._look_at_end(ending, now_s)
        self._choose()

    def _look_at_drivers(self, now_s: float) -> None:
        noting = now_s >= self._progress_s
        if noting:
            self._progress_s = now_s + _PROGRESS_S
        for start in list(self._starts.values()):
            if start.phase is not Phase.RUNNING:
                continue
            attempt = start.attempt
            place = self.folder.job(attempt.job)
            if noting and (fraction := fraction_of(place.watch)) is not None:
                self.store.advance(attempt.job, attempt.number, fraction)
            if place.driver() is None:
                self._drop(start, "it has ended", broke="its process was ended")

    def _look_at_end(self, ending: Ending, now_s: float) -> None:
        """Take the end of an attempt into the store, once its driver is no more."""
        attempt = ending.attempt
        place = self.folder.job(attempt.job)
        pid = place.driver()
        if pid is not None:
            ending.press(pid, now_s, alone=ending.lead not in self._connections)
            return
        del self._ending[attempt.job]
        if not ending.broke:
            return
        outcome = place.outcome(attempt.number)
        event, why = Event.BROKE, ending.broke
        if outcome is not None:
            event, why = _EVENTS[outcome.state], outcome.reason
            if (fraction := fraction_of(place.watch)) is not None:
                self.store.advance(attempt.job, attempt.number, fraction)
        self.store.apply(attempt.job, event, attempt=attempt.number, reason=why, now_s=time.time())

    def _drop(self, start: Start, reason: str, *, broke: str = "") -> None:
        """Free the slots of an attempt, and see to it that its driver ends."""
        self._act(start, start.stop(reason))
        self._end(start.attempt, broke=broke)

    def _end(self, attempt: Attempt, *, broke: str = "") -> None:
        self._starts.pop(attempt.job, None)
        lead = next(iter(self.store.job(attempt.job).workers), "") if attempt.number else ""
        self._ending[attempt.job] = Ending(attempt, broke, lead)
        self._woken.set()

    def _act(self, start: Start, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Send):
                connection = self._connections.get(act.seat)
                if connection is not None:
                    with contextlib.suppress(OSError):  # its end shows where it is read from
                        connection.send(act.message)
            elif isinstance(act, Decide):
                job, number = start.attempt.job, start.attempt.number
                if self.store.apply(job, Event.COMMITTED, attempt=number, now_s=time.time()) is None:
                    self._drop(start, "it was cancelled")
                else:
                    self._act(start, start.decided(time.monotonic()))
            elif isinstance(act, Over):
                self._over(start, act)

    def _over(self, start: Start, over: Over) -> None:
        if over.event is Event.BROKE:
            self._end(start.attempt, broke=over.reason)
            return
        self._starts.pop(start.attempt.job, None)
        self.store.apply(
            start.attempt.job, over.event, attempt=start.attempt.number, reason=over.reason, now_s=time.time()
        )

    def _choose(self) -> None:
        """Let jobs begin for which there is room."""
        waiting = [job for job in self.store.jobs((State.QUEUED,)) if job.id not in self._ending]
        if not waiting:
            self.waits = {}
            return
        under_way, now_s = self._under_way(), time.time()
        busy = {name for job in under_way for name in job.workers}
        free = [name for name in sorted(self._connections) if name not in busy]
        before = {other: self.store.job(other) for job in waiting for other in job.submission.after}
        uses = self.store.uses(now_s - self._rules.memory_s)
        choice = choose(
            waiting, under_way, before, uses,
            free=len(free), total=self.options.workers, now_s=now_s, rules=self._rules,
        )  # fmt: skip
        self.waits = choice.waits
        for job, why in choice.fail:
            self.store.apply(job.id, Event.FAILED, attempt=job.attempt, reason=why, now_s=now_s)
        for job in choice.start:
            self._begin(job, free[: job.submission.workers])
            free = free[job.submission.workers :]

    def _begin(self, waiting: Job, names: list[str]) -> None:
        job = self.store.apply(
            waiting.id, Event.PICKED, attempt=waiting.attempt, workers=tuple(names), now_s=time.time()
        )
        if job is None:
            return
        submission = msgspec.to_builtins(job.submission)
        orders = {name: {"submission": submission, "lead": name == names[0]} for name in names}
        needs = Needs(job.submission.versions, job.submission.requires)
        start = Start(Attempt(job.id, job.attempt), orders, needs, self._limits, time.monotonic())
        self._starts[job.id] = start
        self._act(start, start.tick(time.monotonic()))

    def _under_way(self) -> list[Job]:
        return self.store.jobs((State.STARTING, State.RUNNING))

    def _accept(self) -> None:
        while not self._stopped.is_set():
            own, _ = self._listener.accept()
            threading.Thread(target=self._attend, args=(to_slot(own),), name="chimera slot", daemon=True).start()

    def _attend(self, connection: Connection[Hello | ToCoordinator]) -> None:
        try:
            self._hear(connection)
        except NoSpaceError as error:
            self._full = error

    def _hear(self, connection: Connection[Hello | ToCoordinator]) -> None:
        """Take what a slot says, until it is gone."""
        name = ""
        try:
            while True:
                for message in connection.receive():
                    with self._lock:
                        if isinstance(message, Hello):
                            name = message.name
                            self._greet(message, connection)
                        elif start := self._starts.get(message.attempt.job):
                            self._act(start, start.take(name, message, time.monotonic()))
        except (EOFError, msgspec.MsgspecError):
            pass
        finally:
            connection.close()
            with self._lock:
                if self._connections.get(name) is connection:
                    del self._connections[name], self.slots[name]
                    for start in list(self._starts.values()):
                        self._act(start, start.lost(name, "its process was ended"))
            self._woken.set()

    def _greet(self, hello: Hello, connection: Connection[Any]) -> None:
        """Know a slot, and tell it if what it holds its place for is over."""
        self._connections[hello.name], self.slots[hello.name] = connection, hello
        held = hello.attempt
        for start in list(self._starts.values()):
            if start.attempt != held:
                self._act(start, start.lost(hello.name, "its process was ended"))
        known = self._starts.get(held.job) if held is not None else None
        if held is not None and (known is None or known.attempt != held):
            with contextlib.suppress(OSError):
                connection.send(Release(held, "it is over"))
        self._woken.set()


def run(folder: ClusterFolder, options: Options, web: socket.socket, slots: socket.socket, lifeline: int) -> None:
    """Be the daemon of a cluster, until SIGTERM or the end of the cluster."""
    from chimera.jobs.daemon.app import create_jobs_app
    from chimera.web.app import serve

    threading.Thread(target=_end_with, args=(lifeline,), name="chimera lifeline", daemon=True).start()
    daemon = Daemon(folder, options, slots, Limits())
    app, access = create_jobs_app(daemon)
    serve(app, host=options.host, port=options.port, settings=access, on_started=daemon.begin, listener=web)


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)
