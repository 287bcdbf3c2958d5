"""An actor on a rank: a thread that runs its calls, one after another."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from chimera.core import call as actor_context
from chimera.core.errors import ActorLost
from chimera.engines.failure import Failure
from chimera.engines.handle import CONSTRUCT, results
from chimera.engines.mpi.context import Abandoned, MpiContext
from chimera.engines.mpi.messages import Call, Row
from chimera.engines.mpi.store import StoredValue
from chimera.engines.mpi.values import Kept
from chimera.engines.thread_context import close_for_threads, enter_thread, open_for_threads
from chimera.engines.threads import limit_threads_of_process

if TYPE_CHECKING:
    from chimera.engines.mpi.rank import Rank

_HEARTBEAT_S = 0.5


class FailedArgumentError(Exception):
    """An argument that is a failure, which becomes the failure of the call's results."""

    def __init__(self, value: Kept) -> None:
        self.value = value


class HostedActor:
    """An actor and its thread.

    Attributes
    ----------
    dead : whether it was killed; its calls then fail at once.
    calls : the calls that have not ended.
    running : the call that runs now.
    rows : rows of calls by other actors that the driver has not fetched.
    """

    def __init__(self, rank: Rank, context: MpiContext, threads: int) -> None:
        self.context, self.name, self.dead = context, context.name, False
        self.calls: dict[int, Call] = {}  # by the number of the first result
        self.running: Call | None = None
        self.rows: list[Row] = []
        self._rank, self._threads = rank, threads
        self._queue: queue.SimpleQueue[tuple[Call, list[StoredValue]] | None] = queue.SimpleQueue()
        self._target: Any = None
        self._constructor_failure: Kept | None = None  # why the constructor failed; every call fails with it
        self._end_s = 0.0  # end of the last call
        self._thread = threading.Thread(target=self._run, name=f"chimera-{context.name}", daemon=True)
        self._thread.start()

    def add(self, call: Call, slots: list[StoredValue]) -> None:
        """Run a call after the earlier ones; ``slots`` are the values of its refs."""
        self.calls[call.outs[0]] = call
        self._queue.put((call, slots))

    def heartbeat_s(self, now_s: float) -> float:
        """Return the time of the running call's last heartbeat, on the driver's clock; ``now_s`` between calls."""
        heartbeat_s = self.context.heartbeat_s
        return now_s if heartbeat_s is None or self.running is None else heartbeat_s + self._rank.store.shift_s

    def abandon(self) -> None:
        """End the thread where it waits, or else when it declares work or its call ends. The caller holds the rank's lock.

        An exception from outside could interrupt the thread while it takes a lock, which would then stay locked.
        """
        self.dead = self.context.abandoned = True
        self._queue.put(None)
        self._rank.wake(self.context)

    def _run(self) -> None:
        open_for_threads()
        enter_thread(self.context)
        try:
            limit_threads_of_process(self._threads)
            while (queued := self._queue.get()) is not None and self._begins(queued[0]):
                self._serve(*queued)
                del queued
                self.running = None
                self.context.prepare()
        except Abandoned:
            pass
        except Exception as error:  # an error of the engine: callers must not wait for this thread
            traceback.print_exc()
            self._rank.record_death(self, f"ended with {type(error).__name__}: {error}")
        finally:
            self._target = None
            self.context.close()
            close_for_threads()

    def _begins(self, call: Call) -> bool:
        """Record the call that runs now; return False if the actor is dead, so that the arguments have been given back."""
        with self._rank.changed:
            if not self.dead:
                self.running = call
            return not self.dead

    def _serve(self, call: Call, slots: list[StoredValue]) -> None:
        context = self.context
        start_s = context.heartbeat_s = time.monotonic()
        values: list[Kept] = []
        failure: Kept | None = None
        error = ""
        ready_s = 0.0
        try:
            ready_s = self._await(slots)
            args, kwargs = self._opened(call, slots)
            start_s = time.monotonic()
            values = [Kept.of(value) for value in self._values(call, args, kwargs)]
            del args, kwargs
        except FailedArgumentError as argument:
            start_s = time.monotonic()
            failure = argument.value
        except SystemExit:
            self._rank.record_death(self, "exited")
            raise Abandoned from None
        except Exception as exception:  # any exception of an actor is the result of the call
            failure = Kept.of(Failure(exception, self.name, call.method))
            if call.method == CONSTRUCT:
                self._constructor_failure = failure
        finally:
            self._rank.give_back(call)
        if failure is not None:
            error = failure.open().kind
            values = [failure] * len(call.outs)
        self._finish(call, values, start_s, ready_s, error)

    def _finish(self, call: Call, values: list[Kept], start_s: float, ready_s: float, error: str) -> None:
        context, shift_s = self.context, self._rank.store.shift_s
        waited_s, bytes_in, bytes_out = context.take_costs()
        bytes_out += 0 if error else sum(value.array_bytes for value in values)
        rows, context.parts = context.parts, []
        begin_s = rows[-1][2] if rows else start_s + shift_s
        end_s = time.monotonic() + shift_s
        transfer_s = max(start_s + shift_s - max(call.issued_s, ready_s, self._end_s), 0.0)
        if rows:  # the time in which the arguments arrived precedes the first part
            rows[0] = (*rows[0][:3], transfer_s, *rows[0][4:])
            transfer_s = 0.0
        counts = bytes_in, bytes_out, actor_context.take_work().samples
        rows.append((call.method, begin_s, end_s, transfer_s, waited_s, *counts, error))
        self._end_s, context.heartbeat_s = end_s, None
        self._rank.finish(self, call, values, bool(error), rows)

    def _await(self, slots: list[StoredValue]) -> float:
        """Wait until all values are present; return when the last of them was ready, on the driver's clock."""
        changed = self._rank.changed
        with changed:
            while any(slot.value is None for slot in slots):
                self.context.alive()
                changed.wait(_HEARTBEAT_S)
        for slot in slots:
            assert slot.value is not None
            if slot.failed:
                raise FailedArgumentError(slot.value)
        return max((slot.ready_s for slot in slots), default=0.0)

    def _opened(self, call: Call, slots: list[StoredValue]) -> tuple[list[Any], dict[str, Any]]:
        """Return all arguments in order."""
        received, bytes_in = [], 0
        for (_, _, producer), slot in zip(call.arguments(), slots, strict=True):
            assert slot.value is not None
            received.append(slot.value.open())
            bytes_in += slot.value.array_bytes if producer != self.context.actor else 0
        plain: tuple[list[Any], dict[str, Any]] = ([], {})
        if call.plain is not None:
            plain = call.plain.open()
            bytes_in += call.plain.array_bytes
        self.context.received_bytes += bytes_in
        values, others = iter(received), iter(plain[0])
        args = [next(others) if ref is None else next(values) for ref in call.refs]
        return args, {**plain[1], **{name: next(values) for name in call.named}}

    def _values(self, call: Call, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        if call.method == CONSTRUCT:
            factory, *rest = args
            self._target = factory(*rest, **kwargs)
            return [None]
        if self._constructor_failure is not None:
            raise FailedArgumentError(self._constructor_failure)
        return results(getattr(self._target, call.method)(*args, **kwargs), self.name, call.method, call.returns)


def lost(name: str, method: str, death_cause: str = "died") -> Kept:
    """Return the failure of a call on a dead actor."""
    return Kept.of(Failure(ActorLost(f"{name} {death_cause}; the call {method!r} has no result"), name, method))
