"""Fault injection: a small Ray actor on each node that needs one sends the signals."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any

from chimera.core.engine import Disturbance
from chimera.core.errors import TimeLimitError
from chimera.engines.ray.heartbeat import NodeProcess
from chimera.engines.signals import Disturbances, Process, send

_ANSWER_S, _CLOSE_S = 30.0, 3.0


class FaultInjector:
    """The Ray actor. It disturbs processes of its node; a thread keeps the time."""

    def __init__(self) -> None:
        self._disturbances: Disturbances[Process] = Disturbances(send)
        self._changed = threading.Condition()
        threading.Thread(target=self._keep_time, name="chimera-fault-injector", daemon=True).start()

    def disturb(self, process: Process, disturbance: Disturbance) -> None:
        """Start a disturbance of a process."""
        with self._changed:
            self._disturbances.add(process, disturbance)
            self._changed.notify()

    def kill(self, process: Process) -> None:
        """Kill a process. Ray kills a stopped process only slowly."""
        with self._changed:
            self._disturbances.forget(process)
            with contextlib.suppress(ProcessLookupError):
                send(process, signal.SIGKILL)

    def _keep_time(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(self._disturbances.tick())


class FaultInjectors:
    """The fault injectors of an engine, one per node, created when first needed.

    Parameters
    ----------
    key : key of the engine.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._by_node: dict[str, Any] = {}
        self._disturbed: set[NodeProcess] = set()
        self._kills: list[Any] = []  # refs of pending calls

    def disturb(self, process: NodeProcess, disturbance: Disturbance) -> None:
        """Disturb a process; return when the disturbance has begun, or when its node is gone."""
        import ray
        from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError

        injector = self._by_node.get(process.node) or self._made(process.node)
        self._disturbed.add(process)
        try:
            ray.get(injector.disturb.remote(process.process, disturbance), timeout=_ANSWER_S)
        except GetTimeoutError as error:
            raise TimeLimitError(f"the node {process.node} did not answer within {_ANSWER_S:g} s") from error
        except (RayActorError, ActorUnschedulableError):  # the node is gone, and the process with it
            del self._by_node[process.node]

    def kill(self, process: NodeProcess | None) -> None:
        """Kill a disturbed process, without waiting, because its node may be gone."""
        if process in self._disturbed:
            self._disturbed.discard(process)
            injector = self._by_node.get(process.node)
            if injector is not None:
                self._kills.append(injector.kill.remote(process.process))

    def close(self) -> list[str]:
        """Kill all disturbed processes that are alive, end the fault injectors, and return their names in Ray."""
        import ray

        for process in list(self._disturbed):
            self.kill(process)
        if self._kills:
            ray.wait(self._kills, num_returns=len(self._kills), timeout=_CLOSE_S)
        self._kills.clear()
        for injector in self._by_node.values():
            ray.kill(injector)
        return [self._name(node) for node in self._by_node]

    def _made(self, node: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"name": self._name(node), "num_cpus": 0, "max_restarts": 0, "scheduling_strategy": there}
        self._by_node[node] = ray.remote(FaultInjector).options(**options).remote()
        return self._by_node[node]

    def _name(self, node: str) -> str:
        return f"{self._key}-fault-injector-{node}"
