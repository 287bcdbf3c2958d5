"""The changes of a worker's state, and the calls that wait for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Changes:
    """Counts the changes of a worker's state, and wakes the calls that wait for one.

    Attributes
    ----------
    condition : the lock of the state. The caller of all methods but `wake` and `on_change` holds it.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._wakes: list[Callable[[], object]] = []
        self._version, self._reported_version = 1, 0  # of the state, and of the state that the coordinator knows

    @property
    def is_reported(self) -> bool:
        """Whether the coordinator knows the state."""
        return self._reported_version == self._version

    def report(self) -> None:
        """Note that the coordinator gets the state."""
        self._reported_version = self._version

    def change(self) -> None:
        """Note that the state has changed."""
        self._version += 1
        self.notify()

    def notify(self) -> None:
        """Wake all calls that wait, without a change that the coordinator must know."""
        self.condition.notify_all()
        for wake in self._wakes:
            wake()

    def wake(self) -> None:
        """Wake the worker's own threads."""
        with self.condition:
            self.condition.notify_all()

    @contextlib.contextmanager
    def on_change(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call a function, in any thread, whenever `InferenceWorker.take` may have more to report."""
        with self.condition:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self.condition:
                self._wakes.remove(wake)
