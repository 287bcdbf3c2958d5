"""Reporting of a run's progress and events to its history and callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chimera.models.model import Model
from chimera.training.progress.callback import Callback, Event, Progress, notify
from chimera.training.progress.history import History
from chimera.training.progress.usage import UsageMeter

EventText = tuple[str, str, str]
"""An event before it has a time: kind, actor and detail."""


class Notifier:
    """Writes progress and events to the history, and passes them to the callbacks."""

    def __init__(self, meter: UsageMeter, history: History, callbacks: Sequence[Callback]) -> None:
        self._meter, self._history, self._callbacks = meter, history, callbacks

    def begin(self, progress: Progress) -> None:
        """Report that training starts."""
        notify(self._callbacks, "on_start", progress)

    def measured(self, row: dict[str, Any], progress: Progress) -> None:
        """Report a row of metrics."""
        self._history.add_metrics(row)
        notify(self._callbacks, "on_progress", progress)

    def evaluated(self, model: Model, last: bool) -> None:
        """Report that the model was evaluated."""
        notify(self._callbacks, "on_model", model, last)

    def events(self, events: Iterable[EventText]) -> int:
        """Report each event when the iterator yields it; return the number of events."""
        count = 0
        for what, actor, detail in events:
            self._meter.count()
            event = Event(what, self._meter.seconds(), self._meter.counters.rounds, actor, detail)
            self._history.add_event(event)
            notify(self._callbacks, "on_event", event)
            count += 1
        return count
