"""What a person sees of a run: a live picture on a terminal, plain lines in a pipe, nothing on demand."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
from chimera.report.beside_unigram import beside_unigram
from chimera.training.callback import Callback, Event, Progress

if TYPE_CHECKING:
    from chimera.training.experiment import Experiment
    from chimera.training.run import Run

REFRESH_S = 0.1  # the shortest time between two pictures
SHARE = 0.01  # how much of the driver's time drawing may take
QUIET_S = 10.0  # how long plain lines may be silent between evaluations
EVENTS = 5  # how many events stay in the picture


class Display(Callback):
    """The base, which shows nothing; also a context manager, in which the run takes place."""

    @classmethod
    def of(cls, title: str, *, virtual: bool = False, quiet: bool = False) -> Display:
        """Choose what suits stdout (stderr, while stdout is kept for an answer).

        Parameters
        ----------
        title : of the run.
        virtual : whether its time is.
        """
        if quiet:
            return Display()
        console = ReaderMayGo(file=sys.stdout, highlight=False)
        if console.is_terminal and not console.is_dumb_terminal:
            return LiveDisplay(console, title, virtual=virtual)
        return PlainDisplay(ReaderMayGo(file=sys.stdout, highlight=False, width=200), title)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the picture, however the run ended."""

    def say(self, text: str) -> None:
        """Show a line that the run has printed elsewhere."""

    def finish(self, summary: Mapping[str, Any], report: Path | None) -> None:
        """Show the outcome of a run and where its report is, if it is here."""


class PlainDisplay(Display):
    """A line at the start, at every evaluation and event, and now and then between."""

    def __init__(self, console: Console, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._title, self._clock = console, title, clock
        self._metrics: dict[str, float] = {}
        self._silent_until = 0.0
        self._rate = Rate()

    def on_start(self, progress: Progress) -> None:
        """Say what begins."""
        self._rate.add(progress)
        self._silent_until = self._clock() + QUIET_S
        since = f", from round {progress.rounds}" if progress.rounds else ""
        self._line(f"training {self._title}{since}")

    def on_progress(self, progress: Progress) -> None:
        """Write a line if there was an evaluation, or none for long."""
        evaluated = progress.metrics != self._metrics
        now = self._clock()
        if not evaluated and now < self._silent_until:
            return
        self._metrics, self._silent_until = progress.metrics, now + QUIET_S
        self._rate.add(progress)
        figures = [f"round {progress.rounds}", f"epoch {progress.epochs:.2f}", seconds(progress.seconds)]
        figures += [f"{name} {value}" for name, value in _figures(progress, self._rate.samples_per_second)]
        self._line("  ".join(figures))

    def on_event(self, event: Event) -> None:
        """Write what happened."""
        self._line(event_line(event))

    def say(self, text: str) -> None:
        """Write a line that the run has printed elsewhere."""
        self._line(text)

    def finish(self, summary: Mapping[str, Any], report: Path | None) -> None:
        """Write the outcome, one figure a line."""
        for name, value in outcome(summary):
            self._line(f"{name + ':':<14}{value}")
        if report is not None:
            self._line(f"{'report:':<14}{report}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class LiveDisplay(Display):
    """A picture that is drawn again at most every `REFRESH_S`, and less often if drawing is slow."""

    def __init__(
        self, console: Console, title: str, *, virtual: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._title, self._clock = console, title, clock
        self._kind_of_time = "virtual" if virtual else ""
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._progress: Progress | None = None
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._next = 0.0
        self._rate = Rate()

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update(Text(f"{self._title}: starting ..."), refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last picture if the run failed, so that one sees how far it came."""
        if kind is not None and self._progress is not None:
            self._live.transient = False
            self._live.update(self._picture(self._progress))
        self._live.stop()

    def on_start(self, progress: Progress) -> None:
        """Draw the first picture."""
        self._draw(progress)

    def on_progress(self, progress: Progress) -> None:
        """Draw, if it is time."""
        self._progress = progress
        if self._clock() >= self._next:
            self._draw(progress)

    def on_event(self, event: Event) -> None:
        """Keep the event in the picture."""
        self._events.append(event)
        if self._progress is not None:
            self._draw(self._progress)

    def on_end(self, run: Run) -> None:  # noqa: ARG002
        """Draw the last picture."""
        if self._progress is not None:
            self._draw(self._progress)

    def say(self, text: str) -> None:
        """Print a line that the run has printed elsewhere, above the picture."""
        self._console.print(text, markup=False, soft_wrap=True)

    def finish(self, summary: Mapping[str, Any], report: Path | None) -> None:
        """Print what happened, the outcome, and where the report is."""
        for event in self._events:
            self._console.print(_event_text(event))
        table = Table(show_header=False, box=None, pad_edge=False, title=self._title, title_justify="left")
        table.add_column(style="dim")
        table.add_column()
        for name, value in outcome(summary):
            table.add_row(name, Text(value, style="bold" if name in ("metrics", "lost workers", "lost rounds") else ""))
        if report is not None:
            table.add_row("report", Text(str(report), style=f"cyan link {report.resolve().as_uri()}", overflow="fold"))
        self._console.print(table)

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
            Text(f"{seconds(progress.seconds)} {self._kind_of_time}".rstrip()),
        )
        unicode, width = self._console.encoding.startswith("utf"), self._console.width
        of_workers = (rates_of_workers(progress, self._rate, width), queues(progress.fill, width, unicode=unicode))
        return Group(
            Text(self._title, style="bold"),
            bar,
            _figures_text(_figures(progress, self._rate.samples_per_second), width),
            workers_text(progress.workers, unicode=unicode),
            *(line for line in of_workers if line is not None),
            *map(_event_text, self._events),
        )


def title_of(experiment: Experiment) -> str:
    """Name what makes this run what it is."""
    named = {name: table.get("name") for name, table in experiment.tables.items() if isinstance(table, Mapping)}
    parts = [named.get(table) for table in ("data", "model", "strategy", "codec", "engine")]
    workers = experiment.tables["train"].get("workers")
    names = [str(part).rpartition("/")[2] for part in parts if part]  # of a factory in a file, not where the file is
    return " · ".join(names + ([f"{workers} workers"] if workers else []))


def _packing(summary: Mapping[str, Any]) -> str:
    """Return how small an element was on its way, where messages were sent and a codec made them smaller."""
    found = [(way, summary.get(f"bits_per_element_{way}")) for way in ("up", "down")]
    told = [f"{way} {bits:.3g}" for way, bits in found if bits is not None and bits != 32]
    return f"  bits per element: {', '.join(told)}" if told else ""


def outcome(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the final figures of a run's summary, as names and texts."""
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in summary["metrics"].items())
    known = beside_unigram(summary)
    rows = [
        ("metrics", metrics or "none"),
        *([("unigram", f"{known.unigram:.4f}: the {known.metric} is {known.told()}")] if known else []),
        ("trained", f"{summary['rounds']:,} rounds  {summary['epochs']:.2f} epochs  {summary['samples']:,} samples"),
        ("time", f"{seconds(summary['seconds'])}  {summary['samples_per_second']:,.0f} samples/s"),
        ("traffic", f"up {decimal(summary['bytes_up'])}  down {decimal(summary['bytes_down'])}{_packing(summary)}"),
        ("workers", f"{summary['workers']} on {summary['engine']}"),
        *_privacy(summary),
        ("stopped by", str(summary["stopped_by"])),
    ]
    for what in ("lost_rounds", "lost_workers"):
        if summary.get(what):
            rows.insert(5, (what.replace("_", " "), f"{summary[what]:,}"))
    return rows


def _privacy(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a private run guarantees, and what its guarantee does not cover."""
    told = summary.get("privacy", {})
    outside = [("not covered", "; ".join(told["outside"]))] if "outside" in told else []
    return [("privacy", str(told["guarantee"])), *outside] if told else []


def event_line(event: Event) -> str:
    """Return an event as one line."""
    what = "  ".join(part for part in (event.event, event.actor, event.detail) if part)
    return f"{seconds(event.seconds)}  round {event.round}  {what}"


def seconds(value: float) -> str:
    """Return a duration as a person reads it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _figures(progress: Progress, rate: float | None) -> list[tuple[str, str]]:
    figures = [] if progress.loss is None else [("loss", f"{progress.loss:.4f}")]
    figures += [(f"test {k}" if k == "loss" else k, f"{v:.4f}") for k, v in progress.metrics.items()]
    figures += [] if rate is None else [("samples/s", f"{rate:,.0f}")]
    return [*figures, ("up", decimal(progress.bytes_up)), ("down", decimal(progress.bytes_down))]


def _figures_text(figures: Sequence[tuple[str, str]], width: int) -> Text:
    """Return the figures on as many lines as they need; none is broken."""
    text, used = Text(), 0
    for name, value in figures:
        length = len(name) + 1 + len(value)
        if used and used + 3 + length > width:
            text.append("\n")
            used = 0
        text.append("   " if used else "").append(f"{name} ", style="dim")
        text.append(value, style="bold" if name in ("loss", "accuracy") else "")
        used += length + (3 if used else 0)
    return text


def _event_text(event: Event) -> Text:
    return Text(event_line(event), style="red" if "lost" in event.event else "yellow")


def is_virtual(experiment: Experiment) -> bool:
    """Return whether the time of such a run is virtual."""
    engine = experiment.tables.get("engine")
    return isinstance(engine, Mapping) and engine.get("name") == "simulated"


class ReaderMayGo(Console):
    """A console whose reader may go away: the run goes on without it."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on, and keep the interpreter from failing when it flushes stdout at its end."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
