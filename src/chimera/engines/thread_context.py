"""The engine as seen by actors that are threads of one process: one object per thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core import call
from chimera.core.call import ActorContext, Work
from chimera.core.errors import ConfigurationError


class ThreadContext(ActorContext):
    """The engine as one actor sees it.

    Attributes
    ----------
    heartbeat_s : time of the running call's last heartbeat, by the monotonic clock; None between calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heartbeat_s: float | None = None

    def alive(self) -> None:
        """Record a heartbeat."""
        if self.heartbeat_s is not None:
            self.heartbeat_s = time.monotonic()

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002 - such actors hold no refs
        """Raise; engines whose actors have handles override it."""
        raise ConfigurationError("actors of this engine have no handles on others: only the driver waits for calls")


class _ByThread(ActorContext):
    """The object of the process. It passes calls to the object of the calling thread, or else to its predecessor."""

    def __init__(self) -> None:
        self._own = threading.local()
        self.before = ActorContext()

    def enter(self, own: ThreadContext) -> None:
        self._own.actor_context = own

    @property
    def current(self) -> ActorContext:
        found: ActorContext = getattr(self._own, "actor_context", self.before)
        return found

    @property
    def work(self) -> Work:
        return self.current.work

    @work.setter
    def work(self, work: Work) -> None:
        self.current.work = work

    def alive(self) -> None:
        self.current.alive()

    def empty(self, size: int) -> NDArray[np.float32]:
        return self.current.empty(size)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        return self.current.get(refs, timeout_s)

    def afterwards(self, prepare: Callable[[], None]) -> None:
        self.current.afterwards(prepare)

    def now(self) -> float:
        return self.current.now()

    def record(self, name: str, began_s: float) -> None:
        self.current.record(name, began_s)


_by_thread = _ByThread()
_lock = threading.Lock()
_users = 0


def open_for_threads() -> None:
    """Allow an object per thread until the caller has called `close_for_threads`."""
    global _users
    with _lock:
        if _users == 0:
            _by_thread.before = call.enter(_by_thread)
        _users += 1


def close_for_threads() -> None:
    """Undo one `open_for_threads`."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0 and call.current() is _by_thread:
            call.enter(_by_thread.before)


def enter_thread(own: ThreadContext) -> None:
    """Set the object of this thread."""
    _by_thread.enter(own)


def context_of_thread() -> ActorContext:
    """Return the object of this thread; without one, that of the process."""
    return _by_thread.current if call.current() is _by_thread else call.current()
