"""A worker: it computes batches in order, and keeps each result until a coordinator acknowledges it.

A batch that exceeds its time limit, or that ends the computing process, fails. The worker continues with another process.

It is independent of the transport: `chimera.inference.worker.process` serves it over HTTP, `chimera.inference.pool.ray` by Ray.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ActorLost, ConfigurationError, RunError
from chimera.inference.remote_workers.models import ForeignModels
from chimera.inference.worker.fork_client import ForkClient
from chimera.inference.worker.kept_results import KeptResults
from chimera.inference.worker.model_processes import ModelProcesses
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, Finished, Piece, StaleEpoch, WorkerState
from chimera.inference.worker.time_limit import TICK_S, TimeLimit
from chimera.web.logs import status

KEEP_MODELS = 4
"""Default maximum number of models in memory."""
MAX_WAIT_S = 0.25
"""Maximum seconds that `collect` waits."""
_LOAD_LIMIT_S = 3600.0  # to load a model, which may be downloaded first
_MAX_PIECES = 10_000  # that wait for a coordinator; further ones are dropped, and their texts come with the results


class InferenceWorker:
    """A worker that computes in other processes, so that it answers at any time. All methods are thread-safe.

    The methods with an ``epoch`` get that of the calling coordinator. They raise `StaleEpoch` if the worker knows a later one.

    Parameters
    ----------
    name : name of the worker.
    on_exit : called with the reason, in a thread, when no computing process can be started. The worker is unusable then; its
        own process must exit.
    keep_models : maximum number of models in memory; the least recently used is removed first.
    preload : modules that the fork server imports before the constructor returns, so that the first model loads faster.
    folder : working directory of the computing processes; default: the current folder.
    forks : the fork server; default: an own one.
    models : decides which models of a cluster on another machine are loaded, and from where; default: all, from their paths.

    Raises
    ------
    ConfigurationError : ``keep_models`` is less than 1.
    RunError : a module cannot be imported, or the fork server did not start.
    """

    def __init__(
        self,
        name: str,
        *,
        on_exit: Callable[[str], None],
        keep_models: int = KEEP_MODELS,
        preload: Sequence[str] = (),
        folder: Path | None = None,
        forks: ForkClient | None = None,
        models: ForeignModels | None = None,
    ) -> None:
        if keep_models < 1:
            raise ConfigurationError(f"keep_models must be at least 1, not {keep_models}")
        self.name, self._models = name, models
        self.epoch = 0
        self._on_exit, self._started_s = on_exit, time.monotonic()
        self._changed = threading.Condition()
        self._wakes: list[Callable[[], object]] = []
        self._queue: deque[Assignment] = deque()
        self._computing: Assignment | None = None
        self._batch_began_s = self._busy_s = 0.0
        self._results = KeptResults()
        self._pieces: list[Piece] = []
        self._loaded: list[str] = []
        self._loading: str | None = None
        self._version, self._reported_version = 1, 0  # of the state, and of the state that the coordinator knows
        self._closed = self._draining = self._silent = self._unloaded = False
        self._limit = TimeLimit()
        self._forks = forks or ForkClient()
        try:
            self._forks.prepare(preload)
        except RunError:
            self._forks.close()
            raise
        self._process = ModelProcesses(
            self._forks, preload=preload, keep_models=keep_models, folder=folder or Path.cwd(), on_end=self._wake
        )
        self._thread = threading.Thread(target=self._compute, name=f"chimera-compute-{name}", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name=f"chimera-watch-{name}", daemon=True)
        self._thread.start()
        self._watcher.start()

    def adopt(self, epoch: int, owner: str) -> WorkerState:  # noqa: ARG002 - transports log it
        """Set the coordinator. Results that are not acknowledged are sent again."""
        with self._changed:
            self._check_epoch(epoch)
            self._results.send_again()
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
            while (found := self.take(epoch, done, wait=time.monotonic() < until_s)) is None:
                self._changed.wait(max(until_s - time.monotonic(), 0.0))
            return found

    def take(self, epoch: int, done: Sequence[BatchId], *, wait: bool) -> Collected | None:
        """Do what `collect` does, without waiting.

        Parameters
        ----------
        wait : whether to return None if there is nothing to report. The caller waits for `on_change` then.
        """
        with self._changed:
            self._check_epoch(epoch)
            self._results.drop(done)
            due = self._results.due()
            if wait and not due and self._reported_version == self._version and not self._closed:
                return None
            self._results.sent(due)
            self._reported_version = self._version
            pieces, self._pieces = self._pieces, []
            return Collected(self._state(), due, pieces)

    @contextlib.contextmanager
    def on_change(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call a function, in any thread, whenever `take` may have more to report."""
        with self._changed:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._wakes.remove(wake)

    def prepare(self, epoch: int, models: Sequence[dict[str, Any]]) -> None:
        """Let the fork server get ready for models before their first batch, unless the cluster is on another machine."""
        with self._changed:
            self._check_epoch(epoch)
        for model in models if self._models is None else ():  # else the machine decides what is loaded, batch by batch
            self._process.prepare(model)

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        """Drop the batches of these jobs. If one of them is in progress, kill the computing process, and start another."""
        with self._changed:
            self._check_epoch(epoch)
            self._queue = deque(one for one in self._queue if one.job not in jobs)
            self._pieces = [piece for piece in self._pieces if piece.job not in jobs]
            if self._computing is not None and self._computing.job in jobs:
                self._process.kill()
                self._end_batch()
                self._change()
            return self._state()

    def drain(self, epoch: int) -> WorkerState:
        """Note that no more batches will be assigned. A restart ends it."""
        with self._changed:
            self._check_epoch(epoch)
            self._draining = True
            self._change()
            return self._state()

    def stop(self, epoch: int) -> None:
        """Check the epoch only; the caller closes the worker then."""
        with self._changed:
            self._check_epoch(epoch)

    def leave(self) -> None:
        """Accept no more batches from the scheduler, and return once all results are acknowledged."""
        with self._changed:
            self._draining = True
            self._change()
            while not self._closed and (self._known_batches() or self._reported_version != self._version):
                self._changed.wait(MAX_WAIT_S)

    def state(self) -> WorkerState:
        """Return the state."""
        with self._changed:
            return self._state()

    def close(self) -> None:
        """Kill the computing processes. Unfinished batches are dropped."""
        with self._changed:
            self._closed = True
            self._notify()
            self._process.kill()
        self._thread.join()
        self._watcher.join()
        self._process.close()
        self._forks.close()

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"worker {self.name} serves epoch {self.epoch}: epoch {epoch} is over")
        if epoch > self.epoch:
            self.epoch = epoch
            self._notify()

    def _known_batches(self) -> set[BatchId]:
        own = {one.batch_id for one in self._queue} | self._results.answered()
        return own if self._computing is None else own | {self._computing.batch_id}

    def _state(self) -> WorkerState:
        now_s = time.monotonic()
        computing = self._computing
        return WorkerState(
            name=self.name,
            pid=os.getpid(),
            computing=None if computing is None else computing.batch_id,
            queued=[one.batch_id for one in self._queue],
            kept=self._results.batches(),
            loaded=[self._key(key) for key in self._loaded],
            loading=None if self._loading is None else self._key(self._loading),
            busy_s=self._busy_s + (0.0 if computing is None else now_s - self._batch_began_s),
            up_s=now_s - self._started_s,
            silent=self._silent,
            draining=self._draining,
        )

    def _key(self, key: str) -> str:
        return key if self._models is None else self._models.key(key)

    def _compute(self) -> None:
        try:
            while (one := self._next()) is not None:
                try:
                    for what, more in self._events(one):
                        self._note(one, what, more)
                except ActorLost:
                    self._fail(one)
                if self._process.killed:
                    self._process.renew()
                    with self._changed:
                        self._change()  # so that `_watch` looks again
        except Exception as error:  # the worker is useless without this thread
            if not self._closed:
                self._on_exit(f"worker {self.name}: {error}")

    def _events(self, one: Assignment) -> Iterator[tuple[str, Any]]:
        if self._models is None:
            return self._process.compute(one.job, one.model, one.queries)
        return self._models.events(
            one, self._process.compute, self._loaded, lambda: self._computing is one and not self._closed
        )

    def _next(self) -> Assignment | None:
        """Wait for the next batch, and return it; None once the worker is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed or self._process.any_ended)
                if self._closed:
                    return None
                if not self._process.any_ended:
                    return self._begin(self._queue.popleft())
            self._remove_ended()

    def _begin(self, one: Assignment) -> Assignment:
        self._computing, self._batch_began_s, self._unloaded = one, time.monotonic(), False
        self._limit.start("the batch", self._limit_s(one))
        # `_watch` watches the limit now. The coordinator knows of the batch: a report of its start would delay that of its
        # result by a request.
        self._changed.notify_all()
        return one

    def _remove_ended(self) -> None:
        for how in self._process.remove_ended():  # no batch is the cause
            status().warning("a computing process %s while it was idle", how)
        with self._changed:
            self._loaded = self._process.loaded
            self._change()

    def _limit_s(self, one: Assignment) -> float:
        return one.limit_s and max(one.limit_s, one.limit_loads * self._process.load_s(one.model))

    def _note(self, one: Assignment, what: str, more: Any) -> None:
        """Take over an event of the computing process, unless the batch was dropped meanwhile."""
        with self._changed:
            if self._computing is not one:
                return
            self._silent = False
            if what == "loading":
                self._loading = more
                self._limit.start("loading the model", _LOAD_LIMIT_S)
            elif what == "loaded":
                self._unloaded = self._loading not in (None, *more)
                self._loading, self._loaded = None, more
                self._limit.start("the batch", self._limit_s(one))
            elif what == "piece":
                self._pieces += [Piece(one.job, one.batch, *more)][: _MAX_PIECES - len(self._pieces)]
            else:
                self._end_batch()
                results, tokens = bytes(more["results"]), more["tokens"]
                seconds, errors, error = more["seconds"], more["errors"], more["error"]
                done = Finished(
                    one.job, one.batch, seconds, errors, results, tokens, error=error, unloaded=self._unloaded
                )
                self._results.add(done)
            self._change()

    def _fail(self, one: Assignment) -> None:
        """Keep the failure of a batch whose process has ended, unless the batch was dropped or the worker is closed."""
        exceeded = self._limit.what if self._process.killed else ""
        self._process.kill()
        how = self._process.wait()
        with self._changed:
            if self._computing is one and not self._closed:
                why = f"{exceeded} took longer than {self._limit.limit_s:g} s" if exceeded else f"its process {how}"
                loading = self._loading is not None
                self._end_batch()
                count = len(one.queries)
                self._results.add(Finished(one.job, one.batch, 0.0, count, b"", failure=why, loading=loading))
                self._change()

    def _end_batch(self) -> None:
        self._busy_s += time.monotonic() - self._batch_began_s
        self._computing, self._silent = None, False
        self._limit.stop()
        if self._process.killed:
            self._loading, self._loaded = None, self._process.loaded

    def _change(self) -> None:
        self._version += 1
        self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        for wake in self._wakes:
            wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _watch(self) -> None:
        """Kill the computing process when it exceeds a time limit, and report while it is stopped. `_compute` removes it."""
        with self._changed:
            while not self._closed:
                left_s = None if self._process.killed else self._limit.left_s()
                if left_s == 0:
                    self._process.kill()
                tick_s = TICK_S if self._computing is not None else None
                if not self._changed.wait(min(left_s, TICK_S) if left_s else tick_s):  # nothing has happened meanwhile
                    self._note_silence()

    def _note_silence(self) -> None:
        silent = self._computing is not None and self._process.stopped
        if silent != self._silent:
            self._silent = silent
            self._change()
