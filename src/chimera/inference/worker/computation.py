"""The computation of batches by a worker, one after the other, in the processes of its models."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

from chimera.core.errors import ActorLost
from chimera.inference.remote_workers.models import ForeignModels
from chimera.inference.worker.changes import Changes
from chimera.inference.worker.kept_results import KeptResults
from chimera.inference.worker.model_processes import ModelProcesses
from chimera.inference.worker.protocol import Assignment, Finished, Piece
from chimera.inference.worker.time_limit import TICK_S, TimeLimit
from chimera.web.logs import status

_LOAD_LIMIT_S = 3600.0  # limit to load a model, which may be downloaded first


class Computation:
    """Computes batches in a thread, and keeps their results. Another thread watches time limits.

    The lock `Changes.condition` protects all attributes; its holder calls `forget` and the properties.

    Parameters
    ----------
    name : name of the worker.
    changes : changes of the worker's state.
    results : where results are kept.
    processes : the computing processes.
    models : see `chimera.inference.worker.worker.InferenceWorker`.
    on_exit : called with the reason when no process can be started.

    Attributes
    ----------
    queue : the batches after the current one, in order.
    current : the batch in progress, also while its model is loaded.
    silent : whether its process is stopped, by SIGSTOP for example.
    closed : whether no batch is computed any more.
    """

    def __init__(
        self,
        name: str,
        changes: Changes,
        results: KeptResults,
        processes: ModelProcesses,
        models: ForeignModels | None,
        on_exit: Callable[[str], None],
    ) -> None:
        self.queue: deque[Assignment] = deque()
        self.current: Assignment | None = None
        self.silent = self.closed = self._unloaded = False
        self._name, self._on_exit = name, on_exit
        self._changes, self._changed = changes, changes.condition
        self._results, self._processes, self._models = results, processes, models
        self._batch_began_s = self._busy_s = 0.0
        self._loaded: list[str] = []
        self._loading: str | None = None
        self._limit = TimeLimit()
        self._threads = [
            threading.Thread(target=target, name=f"chimera-{what}-{name}", daemon=True)
            for what, target in (("compute", self._compute), ("watch", self._watch))
        ]

    def start(self) -> None:
        """Start the threads."""
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Kill the computing processes, and end the threads."""
        with self._changed:
            self.closed = True
            self._changes.notify()
            self._processes.kill()
        for each in self._threads:
            each.join()
        self._processes.close()

    @property
    def loaded(self) -> list[str]:
        """The keys of the models in memory, as the cluster knows them."""
        return [self._key(key) for key in self._loaded]

    @property
    def loading(self) -> str | None:
        """The key of the model that is being loaded, as the cluster knows it."""
        return None if self._loading is None else self._key(self._loading)

    @property
    def busy_s(self) -> float:
        """Total seconds with a batch in progress."""
        return self._busy_s + (0.0 if self.current is None else time.monotonic() - self._batch_began_s)

    def forget(self, jobs: Collection[str]) -> None:
        """Drop the batches of these jobs. If one of them is in progress, kill its process."""
        self.queue = deque(one for one in self.queue if one.job not in jobs)
        if self.current is not None and self.current.job in jobs:
            self._processes.kill()
            self._end_batch()
            self._changes.change()

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
                if self._processes.killed:
                    self._processes.renew()
                    with self._changed:
                        self._changes.change()  # so that `_watch` checks again
        except Exception as error:  # the worker is useless without this thread
            if not self.closed:
                self._on_exit(f"worker {self._name}: {error}")

    def _events(self, one: Assignment) -> Iterator[tuple[str, Any]]:
        if self._models is None:
            return self._processes.compute(one.job, one.model, one.queries)
        return self._models.events(
            one, self._processes.compute, self._loaded, lambda: self.current is one and not self.closed
        )

    def _next(self) -> Assignment | None:
        """Wait for the next batch, and return it; None once the worker is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.queue or self.closed or self._processes.any_ended)
                if self.closed:
                    return None
                if not self._processes.any_ended:
                    return self._begin(self.queue.popleft())
            self._remove_ended()

    def _begin(self, one: Assignment) -> Assignment:
        self.current, self._batch_began_s, self._unloaded = one, time.monotonic(), False
        self._limit.start("the batch", self._limit_s(one))
        # `_watch` watches the limit now. The coordinator knows of the batch: a report of its start would delay that of its
        # result by a request.
        self._changed.notify_all()
        return one

    def _remove_ended(self) -> None:
        for how in self._processes.remove_ended():  # no batch is the cause
            status().warning("a computing process %s while it was idle", how)
        with self._changed:
            self._loaded = self._processes.loaded
            self._changes.change()

    def _limit_s(self, one: Assignment) -> float:
        return one.limit_s and max(one.limit_s, one.limit_loads * self._processes.load_s(one.model))

    def _note(self, one: Assignment, what: str, more: Any) -> None:
        """Take over an event of the computing process, unless the batch was dropped meanwhile."""
        with self._changed:
            if self.current is not one:
                return
            self.silent = False
            if what == "loading":
                self._loading = more
                self._limit.start("loading the model", _LOAD_LIMIT_S)
            elif what == "loaded":
                self._unloaded = self._loading not in (None, *more)
                self._loading, self._loaded = None, more
                self._limit.start("the batch", self._limit_s(one))
            elif what == "piece":
                self._results.add_piece(Piece(one.job, one.batch, *more))
            else:
                self._end_batch()
                done = {**more, "results": bytes(more["results"])}
                self._results.add(Finished(one.job, one.batch, **done, unloaded=self._unloaded))
            self._changes.change()

    def _fail(self, one: Assignment) -> None:
        """Keep the failure of a batch whose process has ended, unless the batch was dropped or the worker is closed."""
        exceeded = self._limit.what if self._processes.killed else ""
        self._processes.kill()
        how = self._processes.wait()
        with self._changed:
            if self.current is one and not self.closed:
                reason = f"{exceeded} took longer than {self._limit.limit_s:g} s" if exceeded else f"its process {how}"
                loading = self._loading is not None
                self._end_batch()
                count = len(one.queries)
                self._results.add(Finished(one.job, one.batch, 0.0, count, b"", failure=reason, loading=loading))
                self._changes.change()

    def _end_batch(self) -> None:
        self._busy_s += time.monotonic() - self._batch_began_s
        self.current, self.silent = None, False
        self._limit.stop()
        if self._processes.killed:
            self._loading, self._loaded = None, self._processes.loaded

    def _watch(self) -> None:
        """Kill the computing process when it exceeds a time limit, and report while it is stopped. `_compute` removes it."""
        with self._changed:
            while not self.closed:
                left_s = None if self._processes.killed else self._limit.left_s()
                if left_s == 0:
                    self._processes.kill()
                tick_s = TICK_S if self.current is not None else None
                if not self._changed.wait(min(left_s, TICK_S) if left_s else tick_s):  # no change meanwhile
                    self._note_silence()

    def _note_silence(self) -> None:
        silent = self.current is not None and self._processes.stopped
        if silent != self.silent:
            self.silent = silent
            self._changes.change()
