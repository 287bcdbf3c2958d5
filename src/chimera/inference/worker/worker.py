"""A worker: it computes batches in order, and keeps each result until a coordinator acknowledges it.

It is independent of the transport: `chimera.inference.worker.process` serves it over HTTP, `chimera.inference.pool.ray` by Ray.
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
"""Default maximum number of models in memory."""
MAX_WAIT_S = 0.25
"""Maximum seconds that `collect` waits."""
_RESEND_S = 1.0  # a result is sent again if it was not acknowledged for this long
_MAX_BYTES = 8 << 20  # of results in one answer; a single result may be larger
_DRAIN_S = 0.2  # to receive what the process sent before its end


@dataclass
class _Result:
    finished: Finished
    sent_s: float | None = None


class InferenceWorker:
    """A worker that computes in a child process, so that it answers at any time. All methods are thread-safe.

    The methods with an ``epoch`` get that of the calling coordinator. They raise `StaleEpoch` if the worker knows a later one.

    Parameters
    ----------
    name : name of the worker.
    on_exit : called with the reason, in a thread, when the computing process has ended by itself. The worker is unusable then;
        its own process must exit.
    keep_models : maximum number of models in memory; the least recently used is removed first.
    preload : modules that the process imports before the constructor returns, so that the first model loads faster.
    folder : working directory of the computing process; default: the current folder.

    Raises
    ------
    ConfigurationError : ``keep_models`` is less than 1.
    RunError : the computing process did not start.
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
            raise ConfigurationError(f"keep_models must be at least 1, not {keep_models}")
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
        self._version, self._reported_version = 1, 0  # of the state, and of the state that the coordinator knows
        self._closed = False
        self._process = ComputeProcess(keep_models=keep_models, preload=preload, folder=folder or Path.cwd())
        self._thread = threading.Thread(target=self._compute, name=f"chimera-compute-{name}", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name=f"chimera-watch-{name}", daemon=True)
        self._thread.start()
        self._watcher.start()

    def adopt(self, epoch: int, owner: str) -> WorkerState:  # noqa: ARG002 - transports log it
        """Set the coordinator. Results that are not acknowledged are sent again."""
        with self._changed:
            self._check_epoch(epoch)
            for kept in self._results.values():
                kept.sent_s = None
            self._reported_version = self._version
            return self._state()

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        """Queue batches. A batch that is known already, or whose result is kept, is not computed twice."""
        with self._changed:
            self._check_epoch(epoch)
            for one in assignments:
                if one.batch_id not in self._known_batches():
                    self._queue.append(one)
                    self._changed.notify_all()
            return self._state()

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        """Drop the acknowledged results ``done``, and return the results that were not sent yet.

        If there are none, and the state has not changed since the last report, wait for either: ``wait_s`` seconds, at most
        `MAX_WAIT_S`. A result that is not acknowledged within a second is returned again.
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
        """Drop the queued batches of these jobs. The batch in progress is finished."""
        with self._changed:
            self._check_epoch(epoch)
            self._queue = deque(one for one in self._queue if one.job not in jobs)
            return self._state()

    def stop(self, epoch: int) -> None:
        """Check the epoch only; the caller closes the worker then."""
        with self._changed:
            self._check_epoch(epoch)

    def state(self) -> WorkerState:
        """Return the state."""
        with self._changed:
            return self._state()

    def close(self) -> None:
        """Kill the computing process. Unfinished batches are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._process.kill()
        self._thread.join()
        self._watcher.join()
        self._process.close()

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"worker {self.name} serves epoch {self.epoch}: epoch {epoch} is over")
        if epoch > self.epoch:
            self.epoch = epoch
            self._changed.notify_all()

    def _known_batches(self) -> set[BatchId]:
        own = {one.batch_id for one in self._queue} | set(self._results)
        return own if self._computing is None else own | {self._computing.batch_id}

    def _due(self) -> list[_Result]:
        """Return the results to send, oldest first."""
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
            return  # the watcher reports the reason

    def _next(self) -> Assignment | None:
        """Wait for the next batch, and return it; None once the worker is closed."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._computing, self._batch_began_s = self._queue.popleft(), time.monotonic()
            self._change()
            return self._computing

    def _finish(self, one: Assignment, *, seconds: float, errors: int, results: bytes, tokens: int) -> None:
        self._busy_s += time.monotonic() - self._batch_began_s
        self._computing = None
        self._results[one.batch_id] = _Result(Finished(one.job, one.batch, seconds, errors, bytes(results), tokens))

    def _change(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _watch(self) -> None:
        why = self._process.wait()
        self._thread.join(_DRAIN_S)  # it may have sent a result just before its end
        if not self._closed:
            self._on_exit(f"the computing process of worker {self.name} {why}")
