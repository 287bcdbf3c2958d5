"""Matching of the requests of all workers: messages and collectives, without any I/O."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError, RunError
from chimera.remote.request import Request


class Answer(NamedTuple):
    """The answer that resumes a worker: values, or ``reduces`` if it must first all-reduce in the engine's group."""

    rank: int
    values: tuple[Any, ...] = ()
    reduces: bool = False


class RequestMatcher:
    """A matcher of sends with receives and of collectives, which queues messages and waiting workers.

    Parameters
    ----------
    world_size : number of workers; all of them compute at first.
    """

    def __init__(self, world_size: int) -> None:
        self._waiting: dict[int, tuple[Request, Any]] = {}
        self._messages: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self._world_size = world_size

    def add(self, rank: int, request: Request, value: Any) -> list[Answer]:
        """Add the request of a worker, and return the answers of the workers that can resume."""
        if request.kind == "send":
            self._messages[rank, request.peer].append(value)
            return [Answer(rank), *self._received(request.peer)]
        self._waiting[rank] = request, value
        return self._received(rank) if request.kind == "receive" else self._collective()

    def check_deadlock(self) -> None:
        """Raise RunError if the workers are in a deadlock."""
        if len(self._waiting) == self._world_size and any(
            request.kind != "end" for request, _ in self._waiting.values()
        ):
            raise RunError(f"deadlock: {self.explain()}")

    def explain(self) -> str:
        """Return in one line what each worker does."""
        states = [f"worker {rank} {self._state(rank)}" for rank in range(self._world_size)]
        return "; ".join(states if len(states) <= 16 else [*states[:16], f"and {len(states) - 16} more"])

    def _state(self, rank: int) -> str:
        return str(self._waiting[rank][0]) if rank in self._waiting else "computes"

    def _received(self, rank: int) -> list[Answer]:
        """Return the answer for a worker that waits for a message, if the message has arrived."""
        request, _ = self._waiting.get(rank, (Request("end"), None))
        messages = self._messages[request.peer, rank]
        if request.kind != "receive" or not messages:
            return []
        del self._waiting[rank]
        return [Answer(rank, (messages.popleft(),))]

    def _collective(self) -> list[Answer]:
        """Return the answers for all workers, if all of them wait in the same collective."""
        if len(self._waiting) < self._world_size or any(
            w.kind in ("receive", "end") for w, _ in self._waiting.values()
        ):
            return []
        requests, values = zip(*(self._waiting.pop(rank) for rank in range(self._world_size)), strict=True)
        if len(set(requests)) > 1:
            calls = "; ".join(f"worker {rank}: {request.what}" for rank, request in enumerate(requests))
            raise ConfigurationError(f"the workers call different collectives: {calls}")
        request: Request = requests[0]
        given = {"gather": values, "broadcast": values[request.peer : request.peer + 1]}.get(request.kind, ())
        return [Answer(rank, given, request.kind == "reduce") for rank in range(self._world_size)]
