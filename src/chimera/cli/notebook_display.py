"""The progress of a run in a Jupyter notebook: one line of HTML, which is updated."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

from chimera.cli.display import Display, figures_of
from chimera.cli.display_workers import Rate
from chimera.cli.outcome import seconds
from chimera.training.progress.callback import Event, Progress

REFRESH_S = 0.25  # minimum time between two updates


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookDisplay(Display):
    """A line with a bar, the position, and the figures of a run."""

    def __init__(self, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        from IPython.display import display

        self._title, self._clock = title, clock
        self._rate = Rate()
        self._progress: Progress | None = None
        self._event = ""
        self._next = 0.0
        self._shown = display(_Html(self._line("starting ...")), display_id=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Show the last state, also after a failure."""
        self._draw("" if kind is None else f"ended by {kind.__name__}")

    def on_wait(self, what: str) -> None:
        """Show what the run waits for."""
        self._draw(f"waits for {what} ...")

    def on_start(self, progress: Progress) -> None:
        """Show that training starts."""
        self.on_progress(progress)

    def on_progress(self, progress: Progress) -> None:
        """Update the line if the next update is due."""
        self._progress = progress
        self._rate.add(progress)
        if self._clock() >= self._next:
            self._draw()

    def on_event(self, event: Event) -> None:
        """Show the event until the next one."""
        self._event = " ".join(part for part in (event.event, event.actor) if part)
        self._draw()

    def finish(self, summary: Mapping[str, Any], report: Path | str | None) -> None:
        """Show how the run ended, and the path of its report."""
        self._draw(f"stopped by {summary['stopped_by']} · {report}")

    def _draw(self, note: str = "") -> None:
        self._shown.update(_Html(self._line(note)))
        self._next = self._clock() + REFRESH_S

    def _line(self, note: str) -> str:
        parts = [f"<b>{escape(self._title)}</b>"]
        if (progress := self._progress) is not None:
            value = "" if progress.fraction is None else f' value="{min(max(progress.fraction, 0.0), 1.0):.4f}"'
            parts.append(f'<progress max="1"{value}></progress>')
            where = seconds(progress.seconds, virtual=progress.virtual_time)
            parts.append(f"round {progress.rounds} · epoch {progress.epochs:.2f} · {where}")
            figures = figures_of(progress, self._rate)
            parts += [escape(f"{name} {value}") for name, value in figures]
        parts += [escape(text) for text in (self._event, note) if text]
        return f'<div style="font-variant-numeric: tabular-nums">{" &nbsp; ".join(parts)}</div>'


class _Html:
    """HTML text as an object that a notebook displays."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text
