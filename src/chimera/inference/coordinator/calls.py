"""Calls that threads leave to the main thread of the coordinator."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Call: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


class Calls:
    """The queue of calls for the main thread, and what follows its next write: actions, and answers to the callers.

    `post` and `submit` may be called by any thread, and the other methods by the main thread only.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._actions: list[Callable[[], None]] = []
        self._answers: list[tuple[Future[Any], Any]] = []

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Queue a call."""
        self._queue.put((function, args))

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queue a call; return a future of its result, which cannot be cancelled. It is done after the write."""
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()
        self.post(self._answer, function, answer)
        return answer

    def after_write(self, action: Callable[[], None]) -> None:
        """Run an action after the next write."""
        self._actions.append(action)

    def take(self, wait_s: float) -> list[Call]:
        """Return the queued calls, in order; wait for the first of them at most ``wait_s`` seconds."""
        calls = []
        try:
            calls.append(self._queue.get(timeout=wait_s))
            while True:
                calls.append(self._queue.get_nowait())
        except queue.Empty:
            return calls

    def written(self) -> None:
        """Run the actions, and then answer the callers: the records that both depend on were written."""
        actions, self._actions = self._actions, []
        for action in actions:
            action()
        answers, self._answers = self._answers, []
        for answer, result in answers:
            answer.set_result(result)

    def refuse(self, error: Exception) -> None:
        """Raise an error in all callers that wait: no write follows."""
        for answer, _ in self._answers:
            answer.set_exception(error)
        while True:
            try:
                function, args = self._queue.get_nowait()
            except queue.Empty:
                return
            if function == self._answer:
                args[1].set_exception(error)

    def _answer(self, function: Callable[[], T], answer: Future[T]) -> None:
        try:
            result = function()
        except Exception as error:  # the caller gets the error
            answer.set_exception(error)
        else:
            self._answers.append((answer, result))
