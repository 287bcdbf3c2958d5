"""A rank of the job: its actors, the values that it keeps, the calls that it awaits, and its handling of messages."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chimera.core.imports import import_all
from chimera.engines.handle import CONSTRUCT, receive_handles
from chimera.engines.mpi import messages
from chimera.engines.mpi.actor import HostedActor, lost
from chimera.engines.mpi.calls import Callers, Calls
from chimera.engines.mpi.context import MpiContext
from chimera.engines.mpi.messages import Call, Row
from chimera.engines.mpi.messenger import Messenger
from chimera.engines.mpi.shared import Place
from chimera.engines.mpi.store import Store, fits_in_message
from chimera.engines.mpi.values import Kept, kept_of

DRIVER = 0


class Rank:
    """One process of the job, as the others see it.

    Parameters
    ----------
    comm : communicator of all ranks, which create this object together.
    shift_s : seconds by which the driver's clock is ahead of this machine's.

    Attributes
    ----------
    changed : lock of all that this object holds; notified when a value arrives or a call ends.
    dead : names of the dead actors of the job, by their numbers, in the order in which this rank learned of them.
    answers : answers of other ranks to the driver, by kind of request and rank.
    ended : set when the job ends.
    """

    def __init__(self, comm: Any, shift_s: float) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.dead: dict[int, str] = {}
        self.answers: dict[tuple[int, int], Any] = {}
        self.ended = threading.Event()
        self._imports: list[threading.Thread] = []
        self.actors: dict[int, HostedActor] = {}
        self._constructed: set[int] = set()
        self._closed: set[int] = set()
        self._early: dict[int, list[Call]] = {}  # calls that arrived before the one that creates their actor
        self._callers: dict[str, Callers] = {}
        self._handlers: dict[int, Callable[..., None]] = {
            messages.PRELOAD: self._preload,
            messages.SPAWN: self._spawn,
            messages.CALL: self._call,
            messages.DONE: self._done,
            messages.FETCH: self._fetch,
            messages.VALUE: self._value,
            messages.DROP: self._drop,
            messages.KILL: self._kill,
            messages.DEAD: self._dead,
            messages.ROWS: self._rows,
            messages.SIGNS: self._signs,
            messages.CLOSE: self._close,
            messages.END: self._end,
        }
        self._ready = threading.Event()
        self.messenger = Messenger(comm, self._deliver, self._when_idle)
        self.store = Store(self.messenger, self.changed, shift_s)
        self.calls = Calls(self)
        self._ready.set()

    def import_early(self, modules: Sequence[str]) -> None:
        """Import modules in a thread, before an actor needs them, until the job ends."""
        remaining = itertools.takewhile(lambda _: not self.ended.is_set(), modules)
        thread = threading.Thread(target=import_all, args=(remaining,), name="chimera-preload", daemon=True)
        self._imports.append(thread)
        thread.start()

    def stop_imports(self) -> None:
        """Wait until the threads of `import_early` have ended. The job has ended."""
        for thread in self._imports:
            thread.join()

    def finish(self, actor: HostedActor, call: Call, values: Sequence[Kept], failed: bool, rows: list[Row]) -> None:
        """Keep the results of a call, and report its end to its caller."""
        with self.changed:
            if actor.calls.pop(call.outs[0], None) is None:
                return  # the actor was killed, and the call has failed
            if not call.traced:
                actor.rows += rows
            self._report(call, values, failed, rows if call.traced else None)

    def record_death(self, actor: HostedActor, death_cause: str = "died") -> None:
        """Record the death of an actor of this rank: its calls fail, and all ranks are notified."""
        with self.changed:
            if actor.dead:
                return
            for call in self._abandon(actor):
                self._lose(actor, call, death_cause)
            for rank in range(self.messenger.size):
                self.messenger.send(rank, (messages.DEAD, actor.context.actor, actor.name))

    def _abandon(self, actor: HostedActor) -> list[Call]:
        """End an actor's thread; return its calls that have not ended. Only the running one keeps its arguments, for now."""
        actor.abandon()
        calls = list(actor.calls.values())
        actor.calls.clear()
        for call in calls:
            if call is not actor.running:
                self.give_back(call)
        return calls

    def wake(self, context: MpiContext) -> None:
        """Wake the thread of an actor, wherever it waits."""
        with self.changed:
            self.changed.notify_all()
        self.messenger.wake_ups.wake(self.messenger.rank, context.word)
        if context.notifier is not None and context.memory is not None:
            context.notifier.ring(context.memory.me)

    def _lose(self, actor: HostedActor, call: Call, death_cause: str = "died") -> None:
        now_s = self.store.now_s()
        row = call.method, now_s, now_s, 0.0, 0.0, 0, 0, 0, "ActorLost"
        if not call.traced:
            actor.rows.append(row)
        failure = lost(actor.name, call.method, death_cause)
        self._report(call, [failure] * len(call.outs), True, [row] if call.traced else None)

    def _report(self, call: Call, values: Sequence[Kept], failed: bool, rows: list[Row] | None) -> None:
        for number, value in zip(call.outs, values, strict=True):
            self.store.fill(number, value, failed)
        small = fits_in_message(values)
        described = [value.described() for value in values] if small else None
        buffers = [buffer for value in values for buffer in value.buffers] if small else []
        self.messenger.send(call.caller, (messages.DONE, call.outs[0], failed, described, rows), buffers)

    def _deliver(self, source: int, message: tuple[Any, ...], buffers: list[memoryview]) -> None:
        self._ready.wait()
        kind, *rest = message
        with self.changed:
            self._handlers[kind](source, buffers, *rest)

    def _when_idle(self) -> None:
        if self._ready.is_set() and self.calls.dropped:
            with self.changed:
                self.calls.flush()

    def _preload(self, _: int, __: list[memoryview], modules: list[str]) -> None:
        self.import_early(modules)

    def _spawn(
        self,
        _: int,
        __: list[memoryview],
        key: str,
        actor: int,
        name: str,
        threads: int,
        place: tuple[int, int, int] | None,
        path: list[str],
    ) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path and Path(entry).is_dir())
        if key not in self._callers and self.messenger.rank != DRIVER:
            self._callers[key] = Callers(key, self.calls)
            receive_handles(self._callers[key])
        memory = Place(*place).open() if place else None
        self.actors[actor] = HostedActor(self, MpiContext(self, key, actor, name, memory), threads)

    def _call(
        self,
        source: int,
        buffers: list[memoryview],
        actor: int,
        method: str,
        returns: int | None,
        outs: tuple[int, ...],
        refs: tuple[messages.Argument | None, ...],
        named: dict[str, messages.Argument],
        described: Any,
        issued_s: float,
        traced: bool,
    ) -> None:
        plain = None if described is None else next(kept_of([described], buffers))
        call = Call(source, actor, method, returns, outs, refs, named, plain, issued_s, traced)
        for number in outs:
            self.store.expect(number, actor)
        if actor in self._closed:
            return
        if method == CONSTRUCT:
            self._constructed.add(actor)
        elif actor not in self._constructed:  # a call of another actor has overtaken the messages of the driver
            self._early.setdefault(actor, []).append(call)
            return
        for each in (call, *self._early.pop(actor, ())):
            self._begin(self.actors[actor], each)

    def _begin(self, host: HostedActor, call: Call) -> None:
        if host.dead:
            self._lose(host, call)
        else:
            host.add(call, [self.store.borrow(ref[:2]) for ref in call.arguments()])

    def give_back(self, call: Call) -> None:
        """Forget the copies of a call's arguments."""
        with self.changed:
            for ref in call.arguments():
                self.store.give_back(ref[:2])

    def _done(
        self,
        _: int,
        buffers: list[memoryview],
        number: int,
        failed: bool,
        described: list[Any] | None,
        rows: list[Row] | None,
    ) -> None:
        values = None if described is None else list(kept_of(described, buffers))
        self.calls.end(number, failed, values, rows)

    def _fetch(self, source: int, _: list[memoryview], number: int) -> None:
        self.store.fetch(source, number)

    def _value(
        self, _: int, buffers: list[memoryview], number: int, failed: bool, ready_s: float, described: Any
    ) -> None:
        self.store.arrive(number, next(kept_of([described], buffers)), failed, ready_s)

    def _drop(self, _: int, __: list[memoryview], numbers: list[int]) -> None:
        self.store.drop(numbers)

    def _kill(self, _: int, __: list[memoryview], actor: int) -> None:
        if actor in self.actors:
            self.record_death(self.actors[actor])

    def _dead(self, _: int, __: list[memoryview], actor: int, name: str) -> None:
        self.dead[actor] = name
        for host in self.actors.values():
            self.wake(host.context)
        self.changed.notify_all()

    def _rows(self, source: int, _: list[memoryview], actors: list[int] | None, found: Any = None) -> None:
        if actors is None:
            self._answer(messages.ROWS, source, found)
            return
        rows = {}
        for actor in actors:
            host = self.actors[actor]
            rows[actor], host.rows = host.rows, []
        self.messenger.send(source, (messages.ROWS, None, rows))

    def _signs(self, source: int, _: list[memoryview], actors: list[int] | None, found: Any = None) -> None:
        if actors is None:
            self._answer(messages.SIGNS, source, found)
            return
        now_s = self.store.now_s()
        signs = {actor: self.actors[actor].heartbeat_s(now_s) for actor in actors if actor in self.actors}
        self.messenger.send(source, (messages.SIGNS, None, signs))

    def _close(self, source: int, _: list[memoryview], actors: list[int] | None) -> None:
        if actors is None:
            self._answer(messages.CLOSE, source, True)
            return
        self._closed.update(actors)
        for actor in actors:
            self._constructed.discard(actor)
            self._early.pop(actor, None)
            host = self.actors.pop(actor, None)
            if host is not None and not host.dead:
                self._abandon(host)
            if self.messenger.rank != DRIVER:  # its engines report deaths after they were closed, too
                self.dead.pop(actor, None)
        self.store.drop_actors(actors)
        self.messenger.send(source, (messages.CLOSE, None))

    def _answer(self, kind: int, source: int, answer: Any) -> None:
        self.answers[kind, source] = answer
        self.changed.notify_all()

    def _end(self, _: int, __: list[memoryview]) -> None:
        for host in self.actors.values():
            if not host.dead:
                host.abandon()
        self.ended.set()
