"""The common part of the trackers of Weights & Biases and Trackio, whose libraries have the same interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.training.tracking.tracker import RoundTexts, Tracker


class LoggedRun(Tracker):
    """A run of a library with ``init``, ``log`` and ``finish``; `begin` sets the run.

    Parameters
    ----------
    project : name of the project; default: ``chimera``.
    """

    def __init__(self, *, project: str = "chimera") -> None:
        self._project = project
        self._run: Any = None
        self._texts = RoundTexts()

    def log(self, values: Mapping[str, float], round_: int, seconds: float) -> None:  # noqa: ARG002 - among the values
        """Record values."""
        self._run.log(dict(values), step=round_)

    def event(self, text: str, round_: int) -> None:
        """Record the event in the text of its round."""
        self._run.log({"event": self._texts.added(text, round_)}, step=round_)
