"""Displays of a run: a live view on a terminal, plain lines in a pipe, nothing with --quiet."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chimera.cli.display_workers import Rate, queues, rates_of_workers, workers_text
from chimera.cli.outcome import event_line, measure, outcome, per_second, seconds
from chimera.core.counted import counted
from chimera.report.text_table import Figures, TextColumn, TextTable, print_table
from chimera.training.progress.callback import Callback, Event, Progress

if TYPE_CHECKING:
    from chimera.training.artifacts.result import Run
    from chimera.training.experiment.experiment import Experiment

REFRESH_S = 0.1  # minimum time between two refreshes
SHARE = 0.01  # maximum share of the driver's time for drawing
QUIET_S = 10.0  # plain output prints a line at least this often
EVENTS = 5  # number of events in the live view
_BOLD = ("metrics", "lost workers", "lost rounds", "rejected gradients")
_MIN_VALUE_WIDTH = 24  # characters of the figures beside their names


class Display(Callback):
    """The base class, which shows nothing; a context manager around the run."""

    @classmethod
    def of(cls, title: str, *, quiet: bool = False) -> Display:
        """Return the display that suits ``sys.stdout``; ``title`` is that of the run."""
        if quiet:
            return Display()
        live = cls.on_terminal(title)
        if isinstance(live, LiveDisplay):
            return live
        return PlainDisplay(ReaderMayGo(file=sys.stdout, highlight=False, width=200), title)

    @classmethod
    def on_terminal(cls, title: str) -> Display:
        """Return a live view if ``sys.stdout`` is a terminal, else a display that shows nothing."""
        console = ReaderMayGo(file=sys.stdout, highlight=False)
        return LiveDisplay(console, title) if console.can_redraw else Display()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the live view, also after a failure."""

    def on_data(self, description: str) -> None:
        """Show the line about the data."""
        self.show_line(description)

    def on_notice(self, notice: str) -> None:
        """Show the line."""
        self.show_line(notice)

    def show_line(self, text: str) -> None:
        """Show a line that a process of the run printed."""

    def finish(self, summary: Mapping[str, Any], report: Path | str | None) -> None:
        """Show the outcome of a run, and the path of its report if there is one."""


class PlainDisplay(Display):
    """A line at the start, at every evaluation and event, and every `QUIET_S` between."""

    def __init__(self, console: Console, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._title, self._clock = console, title, clock
        self._metrics: dict[str, float] = {}
        self._silent_until = 0.0
        self._rate = Rate()
        self._virtual = False

    def on_start(self, progress: Progress) -> None:
        """Write a line that training starts."""
        self._rate.add(progress)
        self._virtual = progress.virtual_time
        self._silent_until = self._clock() + QUIET_S
        since = f", from round {progress.rounds}" if progress.rounds else ""
        self._line(f"training {self._title}{since}")

    def on_progress(self, progress: Progress) -> None:
        """Write a line after an evaluation, or if the last line is `QUIET_S` old."""
        evaluated = progress.metrics != self._metrics
        now = self._clock()
        if not evaluated and now < self._silent_until:
            return
        self._metrics, self._silent_until = progress.metrics, now + QUIET_S
        self._rate.add(progress)
        figures = [f"round {progress.rounds}", f"epoch {progress.epochs:.2f}", _time(progress)]
        figures += [f"{name} {value}" for name, value in figures_of(progress, self._rate)]
        self._line("  ".join(figures))

    def on_event(self, event: Event) -> None:
        """Write the event as a line."""
        self._line(event_line(event, virtual=self._virtual))

    def show_line(self, text: str) -> None:
        """Write a line that a process of the run printed."""
        self._line(text)

    def finish(self, summary: Mapping[str, Any], report: Path | str | None) -> None:
        """Write the outcome, one figure a line."""
        for name, value in outcome(summary):
            self._line(f"{name + ':':<14}{value}")
        if report is not None:
            self._line(f"{'report:':<14}{report}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class LiveDisplay(Display):
    """A live view, refreshed at most every `REFRESH_S`, and less often if drawing is slow."""

    def __init__(self, console: Console, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._title, self._clock = console, title, clock
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._progress: Progress | None = None
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._next = 0.0
        self._rate = Rate()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Keep the last view if the run failed, to show its progress."""
        if kind is not None and self._progress is not None:
            self._live.transient = False
            self._live.update(self._picture(self._progress))
        self._live.stop()

    def on_wait(self, what: str) -> None:
        """Draw what the run waits for, below its last progress if there is any."""
        waits = Text(f"{self._title}: starting, waits for {what} ...")
        self._live.update(Group(*([self._picture(self._progress)] if self._progress else []), waits), refresh=True)

    def on_start(self, progress: Progress) -> None:
        """Draw the first view."""
        self._draw(progress)

    def on_progress(self, progress: Progress) -> None:
        """Draw if the next refresh is due."""
        self._progress = progress
        if self._clock() >= self._next:
            self._draw(progress)

    def on_event(self, event: Event) -> None:
        """Add the event to the view."""
        self._events.append(event)
        if self._progress is not None:
            self._draw(self._progress)

    def on_end(self, run: Run) -> None:  # noqa: ARG002
        """Draw the last view."""
        if self._progress is not None:
            self._draw(self._progress)

    def on_data(self, description: str) -> None:
        """Print the line about the data above the view, folded at words."""
        self._console.print(description, markup=False)

    def on_notice(self, notice: str) -> None:
        """Print the line above the view, folded at words."""
        self._console.print(notice, markup=False)

    def show_line(self, text: str) -> None:
        """Print a line of a process of the run above the view."""
        self._console.print(text, markup=False, soft_wrap=True)

    def finish(self, summary: Mapping[str, Any], report: Path | str | None) -> None:
        """Print the last events, the outcome and the path of the report."""
        for event in self._events:
            self._console.print(self._event_text(event))
        rows = [
            (name, Figures([Text(part, "bold" if name in _BOLD else "") for part in value.split("  ")]))
            for name, value in outcome(summary)
        ]
        if report is not None:
            link = f" link {report.resolve().as_uri()}" if isinstance(report, Path) else ""  # browsers open no s3://
            rows.append(("report", Figures([Text(str(report), f"cyan{link}")])))
        names, values = zip(*rows, strict=True)
        columns = TextColumn("", names, style="dim"), TextColumn("", values, importance=1, least=_MIN_VALUE_WIDTH)
        print_table(TextTable(columns, title=self._title, headings=False), self._console)

    def _draw(self, progress: Progress) -> None:
        begin = self._clock()
        self._progress = progress
        self._rate.add(progress)
        self._live.update(self._picture(progress), refresh=True)
        end = self._clock()
        self._next = end + max(REFRESH_S, (end - begin) / SHARE)

    def _picture(self, progress: Progress) -> Group:
        bar = Table.grid(padding=(0, 2))
        fraction = progress.fraction
        done = None if fraction is None else min(max(fraction, 0.0), 1.0)
        bar.add_row(
            ProgressBar(
                total=1.0,
                completed=done or 0.0,
                pulse=done is None,
                width=min(40, self._console.width // 3),
                complete_style="cyan",
                finished_style="green",
            ),
            Text("" if done is None else f"{done:4.0%}"),
            Text(f"round {progress.rounds}  epoch {progress.epochs:.2f}", style="dim"),
            Text(_time(progress)),
        )
        unicode, width = self._console.encoding.startswith("utf"), self._console.width
        of_workers = (rates_of_workers(progress, self._rate, width), queues(progress.fill, width, unicode=unicode))
        return Group(
            Text(self._title, style="bold"),
            bar,
            Figures([_figure(*each) for each in figures_of(progress, self._rate)], gap=3),
            workers_text(progress.workers, unicode=unicode),
            *(line for line in of_workers if line is not None),
            *map(self._event_text, self._events),
        )

    def _event_text(self, event: Event) -> Text:
        virtual = self._progress is not None and self._progress.virtual_time
        return Text(event_line(event, virtual=virtual), style="red" if "lost" in event.event else "yellow")


def title_of(experiment: Experiment) -> str:
    """Return the title of a run: data, model, strategy, codec, engine and workers."""
    named = {name: table.get("name") for name, table in experiment.tables.items() if isinstance(table, Mapping)}
    parts = [named.get(table) for table in ("data", "model", "strategy", "codec", "engine")]
    workers = experiment.tables["train"].get("workers")
    names = [str(part).rpartition("/")[2] for part in parts if part]  # of a factory in a file, drop the path
    return " · ".join(names + ([counted(workers, "worker")] if workers else []))


def figures_of(progress: Progress, rate: Rate) -> list[tuple[str, str]]:
    """Return the figures of a progress as pairs of name and text."""
    figures = [] if progress.loss is None else [("loss", measure(progress.loss))]
    figures += [(f"test {k}" if k == "loss" else k, measure(v)) for k, v in progress.metrics.items()]
    virtual = progress.virtual_time
    rates = ("samples", rate.samples_per_second), ("tokens", rate.tokens_per_second)
    figures += [(per_second(virtual, of), f"{value:,.0f}") for of, value in rates if value is not None]
    figures += [] if rate.mfu is None else [("MFU, virtual" if virtual else "MFU", f"{rate.mfu:.1%}")]
    return [*figures, ("up", decimal(progress.bytes_up)), ("down", decimal(progress.bytes_down))]


def _figure(name: str, value: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, "bold" if name in ("loss", "accuracy") else ""))


def _time(progress: Progress) -> str:
    return seconds(progress.seconds, virtual=progress.virtual_time)


class ReaderMayGo(Console):
    """A console that drops its output after its reader has closed the pipe, so that the run continues."""

    @property
    def can_redraw(self) -> bool:
        """Whether lines can be drawn again: the output is a terminal, and not that of a shell command in a notebook."""
        # The kernel of a notebook gives `!command` a terminal, and appends all frames; it sets these variables.
        # With FORCE_COLOR, rich treats a pipe as a terminal.
        in_notebook = "matplotlib_inline" in os.environ.get("MPLBACKEND", "") and os.environ.get("PAGER") == "cat"
        return self.file.isatty() and not self.is_dumb_terminal and not in_notebook

    def on_broken_pipe(self) -> None:
        """Drop all further output, and keep the interpreter from failing when it flushes stdout at exit."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
