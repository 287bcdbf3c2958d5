"""Workers that are detached actors of Ray, on all of its nodes.

Ray pickles all values: any client that can reach the ports of a Ray cluster can run code on it, with or without Chimera.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.errors import ActorLost, RunError, TimeLimitError
from chimera.engines.http.connection import Unreachable
from chimera.engines.ray.failure import translated
from chimera.inference.membership import Member
from chimera.inference.pool.pool import Pool
from chimera.inference.worker.protocol import Assignment, BatchId, Collected, Link, WorkerState
from chimera.inference.worker.worker import KEEP_MODELS, InferenceWorker

THREADS = 16
"""Maximum concurrent calls of an actor: two of each past or present coordinator, and calls of `about`."""
ORPHANED_S = 600.0
"""A worker exits after this many seconds without a call of a coordinator."""
DIED = 3
_ABOUT_TIMEOUT_S = 0.5


def namespace_of(token: str) -> str:
    """Return the Ray namespace of the cluster with a token. It does not reveal the token."""
    return "chimera-infer-" + hashlib.sha256(token.encode()).hexdigest()[:16]


class WorkerActor:
    """An `InferenceWorker` in an actor; its methods are the worker's.

    Parameters
    ----------
    name, preload, keep_models : as of `InferenceWorker`.
    orphaned_s : the worker exits after this many seconds without a coordinator.
    """

    def __init__(
        self, name: str, preload: Sequence[str], keep_models: int = KEEP_MODELS, orphaned_s: float = ORPHANED_S
    ) -> None:
        self._worker = InferenceWorker(name, on_exit=_end, preload=preload, keep_models=keep_models)
        self._last_call_s, self._orphaned_s = time.monotonic(), orphaned_s
        threading.Thread(target=self._watch, name="chimera-orphan", daemon=True).start()

    def adopt(self, epoch: int, owner: str) -> WorkerState:
        """See `InferenceWorker`."""
        return self._called().adopt(epoch, owner)

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:
        """See `InferenceWorker`."""
        return self._called().assign(epoch, assignments)

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:
        """See `InferenceWorker`."""
        return self._called().collect(epoch, done, wait_s)

    def prepare(self, epoch: int, models: Sequence[dict[str, Any]]) -> None:
        """See `InferenceWorker`."""
        self._called().prepare(epoch, models)

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:
        """See `InferenceWorker`."""
        return self._called().forget(epoch, jobs)

    def drain(self, epoch: int) -> WorkerState:
        """See `InferenceWorker`."""
        return self._called().drain(epoch)

    def stop(self, epoch: int) -> None:
        """See `InferenceWorker`."""
        self._worker.stop(epoch)
        threading.Timer(0.1, _end, ("the coordinator has stopped it",)).start()  # after the answer is sent

    def about(self, address: str) -> Member:
        """Return this worker as a member."""
        state, worker = self._worker.state(), self._worker
        word = "loading" if state.loading else "busy" if state.computing else "free"
        return Member(
            "worker", worker.name, socket.gethostname(), os.getpid(), address, word, worker.epoch, time.time()
        )

    def _called(self) -> InferenceWorker:
        self._last_call_s = time.monotonic()
        return self._worker

    def _watch(self) -> None:
        while (left_s := self._last_call_s + self._orphaned_s - time.monotonic()) > 0:
            time.sleep(left_s)
        _end(f"no coordinator has called for {self._orphaned_s:g} s")


def _end(reason: str) -> None:
    sys.stderr.write(f"chimera: error: {reason}\n")
    sys.stderr.flush()
    os._exit(DIED)


class RayLink(Link):
    """A link to an actor.

    Parameters
    ----------
    address : name of the actor, ``w0.1a2b3c4d``.
    namespace : Ray namespace of the cluster.
    timeout_s : maximum seconds until an answer, including the time that `collect` waits.
    """

    def __init__(self, address: str, namespace: str, *, timeout_s: float = 1.0) -> None:
        self.address = address
        self._namespace, self._timeout_s = namespace, timeout_s
        self._handle: Any = None
        self._unanswered: Any = None

    def adopt(self, epoch: int, owner: str) -> WorkerState:
        """See `Link`. After a timeout, the pending call is reused, so that calls do not pile up at an actor that hangs."""
        return self._call("adopt", epoch, owner)  # type: ignore[no-any-return]

    def assign(self, epoch: int, assignments: Sequence[Assignment]) -> WorkerState:  # noqa: D102
        return self._call("assign", epoch, assignments)  # type: ignore[no-any-return]

    def collect(self, epoch: int, done: Sequence[BatchId], wait_s: float) -> Collected:  # noqa: D102
        return self._call("collect", epoch, done, wait_s)  # type: ignore[no-any-return]

    def prepare(self, epoch: int, models: Sequence[dict[str, Any]]) -> None:  # noqa: D102
        self._call("prepare", epoch, models)

    def forget(self, epoch: int, jobs: Sequence[str]) -> WorkerState:  # noqa: D102
        return self._call("forget", epoch, jobs)  # type: ignore[no-any-return]

    def drain(self, epoch: int) -> WorkerState:  # noqa: D102
        return self._call("drain", epoch)  # type: ignore[no-any-return]

    def stop(self, epoch: int) -> None:  # noqa: D102
        self._call("stop", epoch)

    def close(self) -> None:
        """Do nothing; a call in progress ends within its timeout."""

    def _call(self, verb: str, *args: Any) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        where = f"the actor {self.address}"
        try:
            if self._handle is None:
                self._handle = ray.get_actor(self.address, self._namespace)
            earlier, self._unanswered = self._unanswered, None
            ref = earlier if verb == "adopt" and earlier is not None else getattr(self._handle, verb).remote(*args)
            return ray.get(ref, timeout=self._timeout_s)
        except ValueError as error:  # Ray raises it for an unknown name
            raise Unreachable(f"{where} does not exist") from error
        except GetTimeoutError as error:
            self._unanswered = ref if verb == "adopt" else None
            raise TimeLimitError(f"{where} has not answered {verb} within {self._timeout_s:g} s") from error
        except RayError as error:
            found = translated(error, verb, lambda _: self.address)
            if isinstance(found, ActorLost):
                raise Unreachable(str(found)) from None
            if not isinstance(found, RunError):
                found = RunError(f"{where} sent an invalid answer to {verb}: {found}")
            raise found from None


class RayPool(Pool):
    """The actors of a cluster, found by their names in Ray.

    Each poll requests all actors from Ray's head node, so polls are rare. Ray itself reports a death to callers of the actor.

    Parameters
    ----------
    namespace : Ray namespace of the cluster.
    """

    poll_s = 0.5

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._last: dict[str, Member] = {}
        self._called: dict[str, Any] = {}

    def addresses(self) -> Mapping[str, str]:  # noqa: D102
        from ray.util import list_named_actors

        there = [row["name"] for row in list_named_actors(all_namespaces=True) if row["namespace"] == self._namespace]
        return {address.partition(".")[0]: address for address in there}

    def link(self, address: str) -> RayLink:  # noqa: D102
        return RayLink(address, self._namespace)

    def kill(self, name: str, address: str) -> bool:  # noqa: ARG002, D102
        import ray

        with contextlib.suppress(ValueError):  # it is dead already
            ray.kill(ray.get_actor(address, self._namespace))
        return True

    def members(self) -> list[Member]:
        """Request the state of all workers; return the last known state of those that do not answer."""
        import ray
        from ray.exceptions import RayError

        there = set(self.addresses().values())
        pending = {address: ref for address, ref in self._called.items() if address in there}
        self._last = {address: row for address, row in self._last.items() if address in there}
        for address in there - pending.keys():
            with contextlib.suppress(ValueError):  # it died just now
                pending[address] = ray.get_actor(address, self._namespace).about.remote(address)
        refs = list(pending.values())
        answered = set(ray.wait(refs, num_returns=len(refs), timeout=_ABOUT_TIMEOUT_S)[0] if refs else ())
        for address, ref in pending.items():
            if ref in answered:
                with contextlib.suppress(RayError):  # the worker is dead
                    self._last[address] = ray.get(ref)
        self._called = {address: ref for address, ref in pending.items() if ref not in answered}
        return list(self._last.values())
