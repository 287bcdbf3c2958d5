"""Who is told of a run: its history, and the callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chimera.models.model import Model
from chimera.training.progress.callback import Callback, Event, Progress, tell
from chimera.training.progress.history import History
from chimera.training.progress.usage import UsageMeter

Told = tuple[str, str, str]
"""What is to be told of an event: what it is, the actor and the detail."""


class Notifier:
    """Writes down what happens, and tells the callbacks."""

    def __init__(self, meter: UsageMeter, history: History, callbacks: Sequence[Callback]) -> None:
        self._meter, self._history, self._callbacks = meter, history, callbacks

    def begin(self, progress: Progress) -> None:
        """Tell that training begins."""
        tell(self._callbacks, "on_start", progress)

    def measured(self, row: dict[str, Any], progress: Progress) -> None:
        """Tell what was measured."""
        self._history.add_metrics(row)
        tell(self._callbacks, "on_progress", progress)

    def evaluated(self, model: Model, last: bool) -> None:
        """Show the model that was evaluated."""
        tell(self._callbacks, "on_model", model, last)

    def events(self, happenings: Iterable[Told]) -> int:
        """Let things happen, tell of each as it does, and return how many there were."""
        count = 0
        for what, actor, detail in happenings:
            self._meter.count()
            event = Event(what, self._meter.seconds(), self._meter.counters.rounds, actor, detail)
            self._history.add_event(event)
            tell(self._callbacks, "on_event", event)
            count += 1
        return count
