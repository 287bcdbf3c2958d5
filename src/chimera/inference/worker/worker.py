"""A worker: it computes batches in order, and keeps each result until a coordinator acknowledges it.

A batch that exceeds its time limit, or that ends the computing process, fails. The worker continues with another process.

The worker is independent of the transport: `chimera.inference.worker.process` serves it over HTTP,
`chimera.inference.pool.ray` by Ray.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, RunError
from chimera.inference.remote_workers.models import ForeignModels
from chimera.inference.worker.changes import Changes
from chimera.inference.worker.computation import Computation
from chimera.inference.worker.fork_client import ForkClient
from chimera.inference.worker.kept_results import KeptResults
from chimera.inference.worker.model_processes import ModelProcesses
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, StaleEpoch, WorkerState

KEEP_MODELS = 4
"""Default maximum number of models in memory."""
MAX_WAIT_S = 0.25
"""Maximum seconds that `collect` waits."""


class InferenceWorker:
    """A worker that computes in other processes, so that it answers at any time. All methods are thread-safe.

    The methods with an ``epoch`` get that of the calling coordinator. They raise `StaleEpoch` if the worker knows a later one.

    Parameters
    ----------
    name : name of the worker.
    on_exit : called with the reason, in a thread, when no computing process can be started. The worker is unusable then; its
        own process must exit.
    keep_models : maximum number of models in memory; the least recently used is removed first.
    preload : modules that the fork server imports before the constructor returns, so that the first model loads faster. The
        worker runs without those that cannot be imported.
    folder : working directory of the computing processes; default: the current folder.
    forks : the fork server; default: an own one.
    models : decides which models of a cluster on another machine are loaded, and from where; default: all, from their paths.

    Attributes
    ----------
    without : errors of modules of ``preload`` that could not be imported; empty if there are none.
    on_change : a context in which a function is called whenever `take` may have more to report, see `Changes.on_change`.

    Raises
    ------
    ConfigurationError : ``keep_models`` is less than 1.
    RunError : the fork server did not start.
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
        self._started_s = time.monotonic()
        self._changes = Changes()
        self._changed, self.on_change = self._changes.condition, self._changes.on_change
        self._results = KeptResults()
        self._draining = False
        self._forks = forks or ForkClient()
        try:
            missing = self._forks.prepare(preload)
        except RunError:
            self._forks.close()
            raise
        self.without = "; ".join(dict.fromkeys(missing.values()))
        self._processes = ModelProcesses(
            self._forks,
            preload=[module for module in preload if module not in missing],
            keep_models=keep_models,
            folder=folder or Path.cwd(),
            on_end=self._changes.wake,
        )
        self._computation = Computation(name, self._changes, self._results, self._processes, models, on_exit)
        self._computation.start()

    def adopt(self, epoch: int, owner: str) -> WorkerState:  # noqa: ARG002 - transports log it
        """Set the coordinator. Results that are not acknowledged are sent again."""
        with self._changed:
            self._check_epoch(epoch)
            self._results.send_again()
            self._changes.report()
            return self._state()

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        """Queue batches. A batch that is known already, or whose result is kept, is not computed twice."""
        with self._changed:
            self._check_epoch(epoch)
            for one in assignments:
                if one.batch_id not in self._known_batches():
                    queue = self._computation.queue
                    (queue.appendleft if one.ahead else queue.append)(one)
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
            if wait and not due and self._changes.is_reported and not self._computation.closed:
                return None
            self._results.sent(due)
            self._changes.report()
            return Collected(self._state(), due, self._results.take_pieces())

    def prepare(self, epoch: int, models: Sequence[dict[str, Any]]) -> None:
        """Prepare the fork server for models before their first batch, unless the cluster is on another machine."""
        with self._changed:
            self._check_epoch(epoch)
        for model in models if self._models is None else ():  # otherwise the machine decides for each batch
            self._processes.prepare(model)

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        """Drop the batches of these jobs. If one of them is in progress, kill the computing process, and start another."""
        with self._changed:
            self._check_epoch(epoch)
            self._results.forget_pieces(jobs)
            self._computation.forget(jobs)
            return self._state()

    def drain(self, epoch: int) -> WorkerState:
        """Note that no more batches will be assigned. A restart ends it."""
        with self._changed:
            self._check_epoch(epoch)
            self._draining = True
            self._changes.change()
            return self._state()

    def stop(self, epoch: int) -> None:
        """Check the epoch only; the caller closes the worker then."""
        with self._changed:
            self._check_epoch(epoch)

    def leave(self) -> None:
        """Accept no more batches from the scheduler, and return once all results are acknowledged."""
        with self._changed:
            self._draining = True
            self._changes.change()
            while not self._computation.closed and (self._known_batches() or not self._changes.is_reported):
                self._changed.wait(MAX_WAIT_S)

    def state(self) -> WorkerState:
        """Return the state."""
        with self._changed:
            return self._state()

    def close(self) -> None:
        """Kill the computing processes. Unfinished batches are dropped."""
        self._computation.close()
        self._forks.close()

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"worker {self.name} serves epoch {self.epoch}: epoch {epoch} is over")
        if epoch > self.epoch:
            self.epoch = epoch
            self._changes.notify()

    def _known_batches(self) -> set[BatchId]:
        current = self._computation.current
        own = {one.batch_id for one in self._computation.queue} | self._results.answered()
        return own if current is None else own | {current.batch_id}

    def _state(self) -> WorkerState:
        computation = self._computation
        return WorkerState(
            name=self.name,
            pid=os.getpid(),
            computing=None if computation.current is None else computation.current.batch_id,
            queued=[one.batch_id for one in computation.queue],
            kept=self._results.batches(),
            loaded=computation.loaded,
            loading=computation.loading,
            busy_s=computation.busy_s,
            up_s=time.monotonic() - self._started_s,
            silent=computation.silent,
            draining=self._draining,
            without=self.without,
        )
