"""The coordinator's handle of one worker: its state, and the two threads that communicate with it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from chimera.core.errors import DataError, RunError, TimeLimitError
from chimera.engines.http.connection import Unreachable
from chimera.inference.worker.protocol import MAX_PREPARED, Assignment, BatchId, Link, StaleEpoch, WorkerState
from chimera.web.logs import status

SILENT_S = 1.0
"""A worker that has not answered for this many seconds counts as hung."""
_POLL_S = 0.25  # a worker without news answers a collect after at most this
_RETRY_S = 0.05  # pause between attempts to reach a worker that hangs or starts
_MAX_READY_MODELS = 1000  # models for which a worker is known to be ready
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 10.0  # after a worker has refused a batch


class _Order(Enum):
    """An order to a worker, which the sender thread sends."""

    DRAIN = "drain"
    STOP = "stop"


class WorkerHandle:
    """One worker, as the coordinator sees it.

    The watcher thread adopts the worker, and then collects results repeatedly, which serves as the heartbeat too. The sender
    thread sends batches, so that a worker that hangs delays no other. Both post events to the coordinator, and end at `close`.

    Parameters
    ----------
    name, address : name and address of the worker. A worker that restarts has a new address, and gets a new handle.
    epoch, owner : epoch and name of the coordinator.
    link : makes a link from an address; each thread has its own link.
    post : called with this handle, the event (``adopted``, ``collected``, ``silent``, ``disconnected``, ``fenced``, ``unsent``,
        ``unreadable``, ``restarting``) and its argument.
    assignment : makes the assignment of a batch; called in the sender thread.
    kill : kills the worker if it hangs, and returns whether it could; called in the sender thread.
    host : name of the worker's machine; empty if it is not known.

    Attributes
    ----------
    batches : the batches of the worker, each with the time of its dispatch; the worker computes the first.
    sent : those of them that the worker has received for certain.
    ahead : those that the worker computes before the batches that it has not begun.
    loaded : keys of the models in the worker's memory.
    reported : the last state that the worker reported.
    unloadable : keys of the models that the worker cannot load and other workers may, each with the error.
    state : ``joining``, ``free``, ``busy``, ``loading``, ``draining``, ``drained``, ``restarting``, ``hung`` or ``lost``.
    seen_s : time of the last answer, by the monotonic clock.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        epoch: int,
        owner: str,
        link: Callable[[str], Link],
        post: Callable[[WorkerHandle, str, Any], None],
        assignment: Callable[[BatchId], Assignment],
        kill: Callable[[], bool],
        host: str = "",
    ) -> None:
        self.name, self.address, self.host, self.warning = name, address, host, ""
        self.unloadable: dict[str, str] = {}
        self.batches: dict[BatchId, float] = {}
        self.sent: set[BatchId] = set()
        self.ahead: set[BatchId] = set()
        self.loaded: frozenset[str] = frozenset()
        self.state = "joining"
        self.seen_s = time.monotonic()
        self.reported: WorkerState | None = None
        self._draining = self._restarting = False
        self._refused_pause_s = self._refused_until_s = 0.0
        self._epoch, self._owner, self._post, self._assignment = epoch, owner, post, assignment
        self._kill = kill
        self._to_acknowledge: queue.SimpleQueue[BatchId] = queue.SimpleQueue()
        self._to_send: queue.SimpleQueue[BatchId | str | list[dict[str, Any]] | _Order | None] = queue.SimpleQueue()
        self._prepared: frozenset[str] = frozenset()
        self._closed = threading.Event()
        self._watch_link, self._send_link = link(address), link(address)
        for target in (self._watch, self._send):
            threading.Thread(target=target, name=f"chimera-{name}", daemon=True).start()

    @property
    def available(self) -> bool:
        """Whether batches may be dispatched to the worker."""
        ready = self.state in ("free", "busy", "loading")
        return ready and time.monotonic() >= self._refused_until_s

    def pause(self) -> float:
        """Dispatch nothing to the worker for some seconds; return their number, which doubles until it takes a batch."""
        self._refused_pause_s = min(max(2 * self._refused_pause_s, _FIRST_PAUSE_S), _MAX_PAUSE_S)
        self._refused_until_s = time.monotonic() + self._refused_pause_s
        return self._refused_pause_s

    def update(self, reported: WorkerState) -> None:
        """Take over the state that the worker reported."""
        loaded = frozenset(reported.loaded)
        self._prepared -= self.loaded - loaded
        self.reported, self.loaded = reported, loaded
        if reported.computing in self.batches:  # a batch that was sent ahead may have arrived too late for that
            self.batches = {reported.computing: self.batches[reported.computing], **self.batches}
        self.seen_s = time.monotonic()
        self.state = self._state(reported)

    def _state(self, reported: WorkerState) -> str:
        if self._restarting:
            return "restarting"
        if reported.draining or self._draining:
            return "draining" if self.batches else "drained"
        return "loading" if reported.loading else "busy" if self.batches else "free"

    def insert(self, batch_id: BatchId, at_s: float) -> None:
        """Add a batch that the worker computes after its present one, before the others."""
        present, *others = self.batches.items()
        self.batches = dict([present, (batch_id, at_s), *others])
        self.ahead.add(batch_id)

    def send(self, batch_id: BatchId) -> None:
        """Send a batch to the worker."""
        self.state = "busy"
        self._to_send.put(batch_id)

    def prepare(self, models: Mapping[str, dict[str, Any]]) -> None:
        """Prepare the worker for models, given by key; for each model once, until it has left the worker's memory."""
        new = {key: model for key, model in models.items() if key not in self._prepared and key not in self.loaded}
        if new:
            self._prepared = (self._prepared if len(self._prepared) < _MAX_READY_MODELS else frozenset()).union(new)
            self._to_send.put([*new.values()][:MAX_PREPARED])

    def acknowledge(self, batch_id: BatchId) -> None:
        """Acknowledge a result, so that the worker drops it."""
        self.sent.discard(batch_id)
        self.ahead.discard(batch_id)
        self._to_acknowledge.put(batch_id)

    def culprit(self) -> BatchId | None:
        """Return the batch that the worker computes, as far as is known. This batch may have caused the worker's death."""
        first = next(iter(self.batches), None)
        return first if first in self.sent else None

    def forget_job(self, job: str) -> None:
        """Drop the batches of a job. If the worker computes one of them, its computing process is killed and replaced."""
        dropped = [batch_id for batch_id in self.batches if batch_id[0] == job]
        for batch_id in dropped:
            del self.batches[batch_id]
        self.sent.difference_update(dropped)
        self.ahead.difference_update(dropped)
        if self.available and not self.batches:
            self.state = "free"
        self._to_send.put(job)

    def drain(self) -> None:
        """Send the worker no more batches; it finishes its present ones."""
        self._draining = True
        if self.available:
            self.state = "draining" if self.batches else "drained"
        self._to_send.put(_Order.DRAIN)

    def restart(self) -> None:
        """Stop the worker, so that its supervisor starts it again; kill it if it hangs."""
        self._restarting, self.state = True, "restarting"
        self._post_event("restarting", "it is restarted by a command")
        self._to_send.put(_Order.STOP)

    def close(self) -> None:
        """End the threads. The worker continues to run."""
        self._closed.set()
        self._to_send.put(None)
        self._watch_link.close()
        self._send_link.close()

    def _watch(self) -> None:
        silent = False
        while not self._closed.is_set():
            try:
                self._post_event("adopted", self._watch_link.adopt(self._epoch, self._owner))
                silent = False
                while not self._closed.is_set():
                    done = self._take_acknowledged()
                    self._post_event("collected", self._watch_link.collect(self._epoch, done, _POLL_S))
            except TimeLimitError:
                if not silent:
                    self._post_event("silent", f"no answer for {SILENT_S:g} s")
                silent = True
            except StaleEpoch as error:
                self._post_event("fenced", str(error))
                return
            except (Unreachable, RunError) as error:
                self._post_event("disconnected", str(error))
                return
            self._closed.wait(_RETRY_S)

    def _send(self) -> None:
        while (item := self._to_send.get()) is not None:
            try:
                if isinstance(item, str):
                    self._send_link.forget(self._epoch, [item])
                elif item is _Order.DRAIN:
                    self._send_link.drain(self._epoch)
                elif item is _Order.STOP:
                    self._stop()
                elif isinstance(item, list):
                    self._send_link.prepare(self._epoch, item)
                elif (
                    item in self.batches
                ):  # else it was returned while the worker was silent: another worker may have it
                    assignment = msgspec.structs.replace(self._assignment(item), ahead=item in self.ahead)
                    self._send_link.assign(self._epoch, [assignment])
                    self.sent.add(item)
                    self._refused_pause_s = 0.0
            except StaleEpoch as error:
                self._post_event("fenced", str(error))
                return
            except DataError as error:
                self._post_event("unreadable", (item, str(error)))
            except Exception as error:  # no other thread sends batches to this worker, so this one must not end
                if not isinstance(error, Unreachable | RunError):
                    status().error("%s: %s", self.name, error, exc_info=error)
                if isinstance(item, tuple):
                    self._post_event("unsent", (item, str(error) or type(error).__name__))

    def _stop(self) -> None:
        try:
            self._send_link.stop(self._epoch)
        except TimeLimitError:
            if not self._kill():
                status().error("%s hangs on another machine: end its process there", self.name)

    def _take_acknowledged(self) -> list[BatchId]:
        done = []
        while True:
            try:
                done.append(self._to_acknowledge.get_nowait())
            except queue.Empty:
                return done

    def _post_event(self, event: str, more: Any) -> None:
        if not self._closed.is_set():
            self._post(self, event, more)
