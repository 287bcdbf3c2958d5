"""A worker: it computes batches in order and keeps their results until a coordinator has them for good.

It knows no transport. Behind HTTP it is a process (`chimera.inference.worker.process`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chimera.core.errors import ActorLost, ConfigurationError
from chimera.inference.worker.compute_process import ComputeProcess
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, Finished, StaleEpoch, WorkerState

KEEP_MODELS = 4
"""So many models stay in memory, unless somebody says otherwise."""
MAX_WAIT_S = 0.25
"""The longest that a request for results waits."""
_RESEND_S = 1.0  # a result that is not acknowledged for so long after it was sent is sent again
_MAX_BYTES = 64 << 20  # of results in one answer; one alone may be larger
_DRAIN_S = 0.2  # for what the process told before its end


@dataclass
class _Result:
    finished: Finished
    sent_s: float | None = None


class InferenceWorker:
    """Computes in a process of its own, so that it answers at any time; to be called by any number of threads.

    Every method but `close` is told the epoch of the coordinator that calls it, and raises `StaleEpoch` if it has heard of a
    later one.

    Parameters
    ----------
    name : of the worker.
    on_exit : called with why, in a thread, when the process that computes has ended by itself: the worker is dead then, and
        whatever carries it must end.
    keep_models : how many models stay in memory; the least recently used goes first.
    preload : modules that the process imports before this returns, so that the first model loads sooner.
    folder : where it computes; relative paths count from there.

    Raises
    ------
    ConfigurationError : ``keep_models`` is less than 1.
    RunError : the process did not start.
    """

    def __init__(
        self,
        name: str,
        *,
        on_exit: Callable[[str], None],
        keep_models: int = KEEP_MODELS,
        preload: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        if keep_models < 1:
            raise ConfigurationError(f"keep_models = {keep_models} cannot be used: at least 1")
        self.name = name
        self.epoch = 0
        self._on_exit, self._started_s = on_exit, time.monotonic()
        self._changed = threading.Condition()
        self._queue: deque[Assignment] = deque()
        self._computing: Assignment | None = None
        self._batch_began_s = self._busy_s = 0.0
        self._results: OrderedDict[BatchId, _Result] = OrderedDict()
        self._loaded: list[str] = []
        self._loading: str | None = None
        self._version, self._reported_version = 1, 0  # of the state, and of that which the coordinator knows
        self._closed = False
        self._process = ComputeProcess(keep_models=keep_models, preload=preload, folder=folder or Path.cwd())
        self._thread = threading.Thread(target=self._compute, name=f"chimera-compute-{name}", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name=f"chimera-watch-{name}", daemon=True)
        self._thread.start()
        self._watcher.start()

    def adopt(self, epoch: int, owner: str) -> WorkerState:  # noqa: ARG002 - transports log it
        """Have ``owner`` for a coordinator from now on; results that were sent, and not acknowledged, will be sent again."""
        with self._changed:
            self._check_epoch(epoch)
            for kept in self._results.values():
                kept.sent_s = None
            self._reported_version = self._version
            return self._state()

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        """Compute batches after those that are there; one that is there, or whose results are, is not computed twice."""
        with self._changed:
            self._check_epoch(epoch)
            for one in assignments:
                if one.batch_id not in self._known_batches():
                    self._queue.append(one)
                    self._changed.notify_all()
            return self._state()

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        """Forget the results of ``done``, and return those that were not sent yet.

        It returns at once if there are any or the state has changed since it was last told, else as soon as that happens, at
        the latest after ``wait_s`` or `MAX_WAIT_S`. What is not acknowledged within a second is sent again.
        """
        until_s = time.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
        with self._changed:
            self._check_epoch(epoch)
            for batch_id in done:
                self._results.pop(batch_id, None)
            while not (due := self._due()) and self._reported_version == self._version:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or self._closed:
                    break
                self._changed.wait(left_s)
                self._check_epoch(epoch)
            now_s = time.monotonic()
            for kept in due:
                kept.sent_s = now_s
            self._reported_version = self._version
            return Collected(self._state(), [kept.finished for kept in due])

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        """Drop what is queued for these jobs; the batch in hand is finished all the same."""
        with self._changed:
            self._check_epoch(epoch)
            self._queue = deque(one for one in self._queue if one.job not in jobs)
            return self._state()

    def stop(self, epoch: int) -> None:
        """Refuse a stale coordinator; whatever carries the worker closes it then."""
        with self._changed:
            self._check_epoch(epoch)

    def state(self) -> WorkerState:
        """Return what it is doing."""
        with self._changed:
            return self._state()

    def close(self) -> None:
        """End the process that computes; what is not done is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._process.kill()
        self._thread.join()
        self._watcher.join()
        self._process.close()

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"worker {self.name} serves epoch {self.epoch}, and this is epoch {epoch}, which is over")
        if epoch > self.epoch:
            self.epoch = epoch
            self._changed.notify_all()

    def _known_batches(self) -> set[BatchId]:
        own = {one.batch_id for one in self._queue} | set(self._results)
        return own if self._computing is None else own | {self._computing.batch_id}

    def _due(self) -> list[_Result]:
        """Return the results to send, the oldest first."""
        now_s = time.monotonic()
        due: list[_Result] = []
        size = 0
        for kept in self._results.values():
            if kept.sent_s is not None and now_s < kept.sent_s + _RESEND_S:
                continue
            size += len(kept.finished.results)
            if due and size > _MAX_BYTES:
                break
            due.append(kept)
        return due

    def _state(self) -> WorkerState:
        now_s = time.monotonic()
        computing = self._computing
        return WorkerState(
            name=self.name,
            pid=os.getpid(),
            computing=None if computing is None else computing.batch_id,
            queued=[one.batch_id for one in self._queue],
            kept=list(self._results),
            loaded=list(self._loaded),
            loading=self._loading,
            busy_s=self._busy_s + (0.0 if computing is None else now_s - self._batch_began_s),
            up_s=now_s - self._started_s,
        )

    def _compute(self) -> None:
        try:
            while (one := self._next()) is not None:
                for what, more in self._process.compute(one.model, one.queries):
                    with self._changed:
                        if what == "loading":
                            self._loading = more
                        elif what == "loaded":
                            self._loading, self._loaded = None, more
                        else:
                            self._finish(one, **more)
                        self._change()
        except ActorLost:
            return  # the watcher tells why

    def _next(self) -> Assignment | None:
        """Wait for a batch, and take it in hand; None once it is closed."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._computing, self._batch_began_s = self._queue.popleft(), time.monotonic()
            self._change()
            return self._computing

    def _finish(self, one: Assignment, *, seconds: float, errors: int, results: bytes) -> None:
        self._busy_s += time.monotonic() - self._batch_began_s
        self._computing = None
        self._results[one.batch_id] = _Result(Finished(one.job, one.batch, seconds, errors, bytes(results)))

    def _change(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _watch(self) -> None:
        why = self._process.wait()
        self._thread.join(_DRAIN_S)  # it may have told of a result with its last breath
        if not self._closed:
            self._on_exit(f"the process in which worker {self.name} computes {why}")
