"""Who may go on, given what the functions of all workers ask for: messages and meetings, without any I/O."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError, RunError
from chimera.remote.wish import Wish


class Answer(NamedTuple):
    """With what a worker goes on: values, and whether it first meets the others in the engine's group."""

    rank: int
    values: tuple[Any, ...] = ()
    meets: bool = False


class Exchange:
    """Where messages wait for who receives them, and workers for one another.

    Parameters
    ----------
    world_size : how many workers there are; all of them compute at first.
    """

    def __init__(self, world_size: int) -> None:
        self._waiting: dict[int, tuple[Wish, Any]] = {}
        self._messages: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self._world_size = world_size

    def ask(self, rank: int, wish: Wish, value: Any) -> list[Answer]:
        """Take what the function of a worker asks for, and return who goes on because of it."""
        if wish.kind == "send":
            self._messages[rank, wish.peer].append(value)
            return [Answer(rank), *self._received(wish.peer)]
        self._waiting[rank] = wish, value
        return self._received(rank) if wish.kind == "receive" else self._met()

    def check_progress(self) -> None:
        """Raise RunError if all workers wait, and so will for ever."""
        if len(self._waiting) == self._world_size and any(wish.kind != "end" for wish, _ in self._waiting.values()):
            raise RunError(f"this would wait for ever: {self.explain()}")

    def explain(self) -> str:
        """Say in one line what each worker does."""
        told = [f"worker {rank} {self._told(rank)}" for rank in range(self._world_size)]
        return "; ".join(told if len(told) <= 16 else [*told[:16], f"and {len(told) - 16} more"])

    def _told(self, rank: int) -> str:
        return str(self._waiting[rank][0]) if rank in self._waiting else "computes"

    def _received(self, rank: int) -> list[Answer]:
        """Return the answer for a worker that waits for a message, if that is there."""
        wish, _ = self._waiting.get(rank, (Wish("end"), None))
        messages = self._messages[wish.peer, rank]
        if wish.kind != "receive" or not messages:
            return []
        del self._waiting[rank]
        return [Answer(rank, (messages.popleft(),))]

    def _met(self) -> list[Answer]:
        """Return the answers of all workers, if they all wait for a meeting, the same one."""
        if len(self._waiting) < self._world_size or any(
            w.kind in ("receive", "end") for w, _ in self._waiting.values()
        ):
            return []
        wishes, values = zip(*(self._waiting.pop(rank) for rank in range(self._world_size)), strict=True)
        if len(set(wishes)) > 1:
            asked = "; ".join(f"worker {rank}: {wish.what}" for rank, wish in enumerate(wishes))
            raise ConfigurationError(f"the workers do not meet for the same: {asked}")
        wish: Wish = wishes[0]
        given = {"gather": values, "broadcast": values[wish.peer : wish.peer + 1]}.get(wish.kind, ())
        return [Answer(rank, given, wish.kind == "reduce") for rank in range(self._world_size)]
