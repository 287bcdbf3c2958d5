"""The computing processes of a worker: one for each model in its memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chimera.core.errors import ActorLost, RunError
from chimera.inference.models.spec import key_of
from chimera.inference.worker.compute_process import ComputeProcess, request_for
from chimera.inference.worker.computing import finished
from chimera.inference.worker.fork_client import ForkClient

RETRY_S = 30.0
"""Seconds for which a worker does not load a model again for a job after a failure."""
_MAX_FAILURES = 100
_ATTEMPTS = 3  # attempts to start a process: the fork server may be restarted, or may have just removed the model


class ModelProcesses:
    """The processes, of which one computes at a time. If a process is killed, only its model must be loaded again.

    Parameters
    ----------
    forks : the fork server.
    preload : modules to import before a model is loaded.
    keep_models : maximum number of models in memory; the least recently used is removed first.
    folder : working directory of the processes.
    on_end : called in a thread when a process has ended.

    Attributes
    ----------
    killed : whether `kill` was called since the last `renew`.
    """

    def __init__(
        self,
        forks: ForkClient,
        *,
        preload: Sequence[str],
        keep_models: int,
        folder: Path,
        on_end: Callable[[], None],
    ) -> None:
        self.killed = False
        self._forks, self._preload, self._keep_models = forks, preload, keep_models
        self._start = partial(
            ComputeProcess, forks, preload=preload, keep_models=keep_models, folder=folder, on_end=on_end
        )
        self._ready: OrderedDict[str, ComputeProcess] = OrderedDict()
        # By job and model: until when it counts, and why the model could not be loaded.
        self._failures: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        self._current: ComputeProcess | None = None
        self._lock = threading.Lock()

    @property
    def loaded(self) -> list[str]:
        """The keys of all models in memory."""
        with self._lock:
            return [key for key, each in self._ready.items() if not (self.killed and each is self._current)]

    @property
    def stopped(self) -> bool:
        """Whether the process that computes is stopped."""
        current = self._current
        return current is not None and current.stopped

    @property
    def any_ended(self) -> bool:
        """Whether a process with a model has ended."""
        with self._lock:
            return any(each.ended for each in self._ready.values())

    def remove_ended(self) -> list[str]:
        """Remove the models whose processes have ended while they were idle; return how each ended."""
        with self._lock:
            ended = {key: each for key, each in self._ready.items() if each.ended}
            for key in ended:
                del self._ready[key]
        for each in ended.values():
            each.close()
        return [each.wait() for each in ended.values()]

    def load_s(self, model: Mapping[str, Any]) -> float:
        """Return the seconds that the load of a model took; 0 if it is not in memory."""
        with self._lock:
            process = self._ready.get(key_of(model))
        return 0.0 if process is None else process.load_s

    def prepare(self, model: dict[str, Any]) -> None:
        """Import the modules of a model in the fork server, and load it if its weights are shared and there is room."""
        wanted = request_for(model, preload=self._preload, keep_models=self._keep_models, fork=False)
        self._forks.request(wanted).close()

    def compute(self, job: str, model: Mapping[str, Any], queries: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Compute a batch, and yield events; first the model is loaded if it is not in memory.

        If it cannot be loaded, each query gets that error, as do those of the job's batches of the next `RETRY_S` seconds.
        Another job may load it at once: its user may have corrected the error.

        Yields
        ------
        ``loading`` and the key of the model, ``loaded`` and the keys of all models in memory, and the events of
        `ComputeProcess.compute`.

        Raises
        ------
        ActorLost : the process has ended.
        RunError : no process can be started.
        """
        self._current = None  # from now on, `kill` applies to this batch
        key = key_of(model)
        reason = self._failure(job, key)
        if not reason and key not in self._ready:
            yield "loading", key
            reason = self._load(key, model)
            if reason:
                self._failures[job, key] = time.monotonic() + RETRY_S, reason
            yield "loaded", self.loaded
        if reason:
            errors = [{"error": f"the model cannot be loaded: {reason}"}] * len(queries)
            yield "done", finished(errors, 0.0)
            return
        self._ready.move_to_end(key)
        yield from self._computing(self._ready[key]).compute(queries)

    def wait(self) -> str:
        """Wait for the end of the process that has computed, and return how it ended."""
        return "was not started" if self._current is None else self._current.wait()

    def kill(self) -> None:
        """Kill the process that computes, or that is about to."""
        with self._lock:
            self.killed = True
            if self._current is not None:
                self._current.kill()

    def renew(self) -> None:
        """Remove the process that was killed, so that the next batch gets another."""
        with self._lock:
            self.killed, current, self._current = False, self._current, None
            self._ready = OrderedDict((key, each) for key, each in self._ready.items() if each is not current)
        if current is not None:
            current.close()

    def close(self) -> None:
        """Kill all processes."""
        with self._lock:
            there = [*self._ready.values(), *([self._current] if self._current else [])]
            self._ready.clear()
        for each in there:
            each.close()

    def _failure(self, job: str, key: str) -> str:
        """Return why the model of a job could not be loaded a short time ago; empty if it may be loaded."""
        while len(self._failures) > _MAX_FAILURES:
            self._failures.popitem(last=False)
        until_s, reason = self._failures.get((job, key), (0.0, ""))
        if until_s > time.monotonic():
            return reason
        self._failures.pop((job, key), None)
        return ""

    def _load(self, key: str, model: Mapping[str, Any]) -> str:
        """Start a process with a model; return why it cannot be loaded, or an empty text."""
        while len(self._ready) >= self._keep_models:  # first, so that both never fill the memory
            with self._lock:
                _, oldest = self._ready.popitem(last=False)
            oldest.close()
        for _ in range(_ATTEMPTS):
            process = self._computing(self._start(model))
            with contextlib.suppress(ActorLost):
                reason = process.ready()
                break
            if self.killed or not process.unanswered:
                raise ActorLost("the computing process has ended")
            process.close()
        else:
            raise RunError("the process that forks the computing processes has ended")
        if reason:
            process.close()
        else:
            with self._lock:
                self._ready[key] = process
        return reason

    def _computing(self, process: ComputeProcess) -> ComputeProcess:
        """Note that a process computes.

        Raises
        ------
        ActorLost : `kill` was called.
        """
        with self._lock:
            self._current = process
            if self.killed:
                process.kill()
                raise ActorLost("the computing process was killed")
        return process
