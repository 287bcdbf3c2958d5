"""Supervision of workers that are actors of a Ray cluster."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chimera.core.processes import RestartPause
from chimera.engines.ray.failure import translated
from chimera.inference.pool.ray import THREADS, RayPool, WorkerActor
from chimera.inference.worker.worker import KEEP_MODELS

_POLL_S = 0.5  # each poll is a request to Ray's head node
_NO_RESOURCES_S = 10.0


@dataclass
class _Slot:
    """The slot of one worker: the actor in it, or its next start."""

    pause: RestartPause = field(default_factory=RestartPause)
    started_s: float = 0.0
    runs: bool = True
    joining: Any = None  # the ref of the actor's first answer
    waits: bool = False


class RayWorkers:
    """The workers ``w0`` to ``w{N-1}``: detached actors, spread over all nodes; each uses one of Ray's CPUs.

    Workers of an earlier supervisor are kept, with their results and loaded models.

    Parameters
    ----------
    wanted : returns the number N of workers, which may change.
    namespace : Ray namespace of the cluster; this process has joined Ray already.
    preload : modules that workers import before they join.
    keep_models : maximum number of models in a worker's memory.
    gpus : number of Ray GPUs per worker; a fraction shares a GPU. Ray shows a worker its own GPUs only.
    """

    def __init__(
        self,
        wanted: Callable[[], int],
        namespace: str,
        preload: Sequence[str],
        *,
        keep_models: int = KEEP_MODELS,
        gpus: float = 0.0,
    ) -> None:
        self._namespace, self._preload = namespace, preload
        self._keep_models, self._gpus = keep_models, gpus
        self._wanted = wanted
        self._slots = {f"w{i}": _Slot() for i in range(wanted())}
        self._pool = RayPool(namespace)
        self._polled_s = 0.0

    def start(self) -> None:
        """Start the missing workers."""
        there = self._pool.addresses()
        for name in self._slots.keys() - there.keys():
            self._start(name)

    def check(self, notify: Callable[[str], None]) -> None:
        """Restart dead workers."""
        now_s = time.monotonic()
        if now_s < self._polled_s + _POLL_S:
            return
        self._polled_s = now_s
        there = dict(self._pool.addresses())
        self._adjust(there)
        for name, slot in self._slots.items():
            self._report_join(name, slot, notify)
            if name in there:
                continue
            if slot.runs:
                slot.runs = False
                slot.pause.exit(now_s)
                notify(f"{name} has died; it is restarted")
            if slot.pause.is_over(now_s):
                self._start(name)

    def signal(self, number: signal.Signals) -> None:
        """Do nothing: actors receive no signals; `end` kills them."""

    def end(self, deadline_s: float) -> None:
        """Kill all workers of the cluster, and wait until Ray no longer lists them."""
        for address in self._pool.addresses().values():
            self._kill(address)
        while self._pool.addresses() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _adjust(self, there: dict[str, str]) -> None:
        """Add slots, or remove slots and kill their workers, if the number of workers was changed."""
        names = [f"w{i}" for i in range(self._wanted())]
        if len(names) == len(self._slots):
            return
        for name in [name for name in self._slots if name not in names]:
            del self._slots[name]
            if name in there:
                self._kill(there.pop(name))
        for name in names:
            if name not in self._slots:
                self._slots[name] = _Slot()
                if name not in there:
                    self._start(name)
                    there[name] = ""

    def _kill(self, address: str) -> None:
        import ray

        with contextlib.suppress(ValueError):  # it is dead already
            ray.kill(ray.get_actor(address, self._namespace))

    def _start(self, name: str) -> None:
        import ray

        slot = self._slots[name]
        slot.started_s, slot.runs, slot.waits = time.monotonic(), True, False
        slot.pause.start(slot.started_s)
        address = f"{name}.{secrets.token_hex(4)}"
        actor = (
            ray.remote(WorkerActor)
            .options(
                name=address, namespace=self._namespace, lifetime="detached", num_cpus=1,
                num_gpus=self._gpus, scheduling_strategy="SPREAD",
                max_restarts=0, max_task_retries=0, max_concurrency=THREADS,
            )
            .remote(name, self._preload, self._keep_models)
        )  # fmt: skip
        slot.joining = actor.about.remote(address)

    def _report_join(self, name: str, slot: _Slot, notify: Callable[[str], None]) -> None:
        """Report why a worker has not joined."""
        import ray
        from ray.exceptions import RayError

        if slot.joining is None:
            return
        if ray.wait([slot.joining], timeout=0)[0]:
            try:
                ray.get(slot.joining)
            except RayError as error:
                found = translated(error, "about", lambda _: name)
                notify(f"{name} did not start: {str(found).partition(chr(10))[0]}")
            slot.joining = None
        elif not slot.waits and time.monotonic() > slot.started_s + _NO_RESOURCES_S:
            slot.waits = True
            free = ray.available_resources()
            wants = f"a free CPU and {self._gpus:g} of a GPU" if self._gpus else "a free CPU"
            left = ", ".join(f"{free.get(what, 0):g} {what}s" for what in ("CPU", "GPU"))
            notify(f"{name} waits for {wants}: Ray has {left} left")
