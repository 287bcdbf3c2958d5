"""A worker as the coordinator keeps it: what it has to do, and the two threads that talk to it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from chimera.core.errors import RunError, TimeLimitError
from chimera.engines.http.connection import Unreachable
from chimera.inference.worker.protocol import Assignment, Link, Place, StaleEpoch, WorkerState

SILENT_S = 1.0
"""Who has not answered for so long hangs."""
_POLL_S = 0.25  # how long a worker may hold a question back while it has nothing to tell
_AGAIN_S = 0.05  # between tries to reach a worker that hangs or is just starting


class Seat:
    """One worker.

    Its watcher adopts it and then asks for results without end, which is the heartbeat too. Its sender brings batches, so that
    a worker that hangs holds up nobody else. Both tell the coordinator by ``post``, and end with `close`.

    Parameters
    ----------
    name, address : of the worker; at another address it is another one.
    links : makes a link; each thread has its own.
    post : called with this seat, what happened (``adopted``, ``collected``, ``silent``, ``gone``, ``fenced``, ``unsent``)
        and what belongs to it.
    body : makes the assignment of a batch, in the sender's thread.

    Attributes
    ----------
    has : the batches that it has, by job and number, with when it got them; the earliest is the one it computes.
    sent : those of them that it is known to have got.
    loaded : keys of the models that it has in memory.
    told : what the worker last said of itself.
    state : ``joining``, ``free``, ``busy``, ``loading``, ``hung`` or ``lost``.
    seen_s : when it last answered, by the monotonic clock.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        epoch: int,
        owner: str,
        links: Callable[[str], Link],
        post: Callable[[Seat, str, Any], None],
        body: Callable[[Place], Assignment],
    ) -> None:
        self.name, self.address = name, address
        self.has: dict[Place, float] = {}
        self.sent: set[Place] = set()
        self.loaded: frozenset[str] = frozenset()
        self.state = "joining"
        self.seen_s = time.monotonic()
        self.told: WorkerState | None = None
        self._epoch, self._owner, self._post, self._body = epoch, owner, post, body
        self._acknowledged: queue.SimpleQueue[Place] = queue.SimpleQueue()
        self._to_send: queue.SimpleQueue[Place | str | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._watching, self._sending = links(address), links(address)
        for what in (self._watch, self._send):
            threading.Thread(target=what, name=f"chimera-{name}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether batches may go to it."""
        return self.state in ("free", "busy", "loading")

    def take(self, told: WorkerState) -> None:
        """Take in what the worker says of itself."""
        self.told, self.loaded = told, frozenset(told.loaded)
        self.seen_s = time.monotonic()
        self.state = "loading" if told.loading else "busy" if self.has else "free"

    def send(self, place: Place) -> None:
        """Let it have a batch."""
        self.state = "busy"
        self._to_send.put(place)

    def acknowledge(self, place: Place) -> None:
        """Let it forget a result."""
        self.sent.discard(place)
        self._acknowledged.put(place)

    def culprit(self) -> Place | None:
        """Return the batch that it computes, as far as is known: the one that a death may be due to."""
        first = next(iter(self.has), None)
        return first if first in self.sent else None

    def forget(self, job: str) -> None:
        """Let it drop what is queued of a job; what it computes it finishes."""
        for place in [place for place in list(self.has)[1:] if place[0] == job]:
            del self.has[place]
        self._to_send.put(job)

    def close(self) -> None:
        """End the threads; the worker lives on."""
        self._closed.set()
        self._to_send.put(None)
        self._watching.close()
        self._sending.close()

    def _watch(self) -> None:
        silent = False
        while not self._closed.is_set():
            try:
                self._tell("adopted", self._watching.adopt(self._epoch, self._owner))
                silent = False
                while not self._closed.is_set():
                    done = self._drained()
                    self._tell("collected", self._watching.collect(self._epoch, done, _POLL_S))
            except TimeLimitError:
                if not silent:
                    self._tell("silent", f"no answer for {SILENT_S:g} s")
                silent = True
            except StaleEpoch as error:
                self._tell("fenced", str(error))
                return
            except (Unreachable, RunError) as error:
                self._tell("gone", str(error))
                return
            self._closed.wait(_AGAIN_S)

    def _send(self) -> None:
        while (what := self._to_send.get()) is not None:
            try:
                if isinstance(what, str):
                    self._sending.forget(self._epoch, [what])
                else:
                    self._sending.assign(self._epoch, [self._body(what)])
                    self.sent.add(what)
            except StaleEpoch as error:
                self._tell("fenced", str(error))
                return
            except (Unreachable, RunError) as error:
                if not isinstance(what, str):
                    self._tell("unsent", (what, str(error)))

    def _drained(self) -> list[Place]:
        done = []
        while True:
            try:
                done.append(self._acknowledged.get_nowait())
            except queue.Empty:
                return done

    def _tell(self, what: str, more: Any) -> None:
        if not self._closed.is_set():
            self._post(self, what, more)
