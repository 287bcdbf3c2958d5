"""Displays of a comparison: a line for each cell on a terminal, plain lines in a pipe, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from chimera.cli.display import QUIET_S, ReaderMayGo
from chimera.cli.outcome import event_line, measure, seconds
from chimera.report.text_table import TextColumn, TextTable, print_table
from chimera.training.comparison.running import GridCallback
from chimera.training.progress.callback import Event, Progress

if TYPE_CHECKING:
    from rich.console import Console

    from chimera.training.comparison.cell_process import State
    from chimera.training.comparison.comparison import Comparison
    from chimera.training.comparison.grid import Cell

REFRESH_S = 0.25
_COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow"}
_METRICS = (3, 6, 7)  # column importance of the first metrics besides the loss; others are left out
_OTHER_LINES = 8  # lines of the terminal not available for cells


class GridDisplay(GridCallback):
    """The base class, which shows nothing; a context manager around the comparison."""

    @classmethod
    def of(cls, *, quiet: bool) -> GridDisplay:
        """Return the display that suits ``sys.stdout``."""
        if quiet:
            return GridDisplay()
        console = ReaderMayGo(file=sys.stdout, highlight=False)
        if console.can_redraw:
            return LiveGrid(console)
        return PlainGrid(ReaderMayGo(file=sys.stdout, highlight=False, width=10_000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the live view, also after a failure."""

    def finish(self, comparison: Comparison) -> None:
        """Show the table and the path of the page."""


class PlainGrid(GridDisplay):
    """A line when a cell starts, ends or is evaluated, and every `QUIET_S` between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._metrics: dict[str, dict[str, float]] = {}
        self._silent_until: dict[str, float] = {}

    def on_start(self, cell: Cell) -> None:
        """Write a line that the cell starts."""
        self._line(cell, "begins")

    def on_progress(self, cell: Cell, progress: Progress) -> None:
        """Write a line after an evaluation, or if the last line is `QUIET_S` old."""
        now = time.monotonic()
        if progress.metrics == self._metrics.get(cell.name, {}) and now < self._silent_until.get(cell.name, now):
            self._silent_until.setdefault(cell.name, now + QUIET_S)
            return
        self._metrics[cell.name], self._silent_until[cell.name] = progress.metrics, now + QUIET_S
        self._line(cell, "  ".join(f"{name} {value}" for name, value in _figures(cell, progress)))

    def on_event(self, cell: Cell, event: Event) -> None:
        """Write the event as a line."""
        self._line(cell, event_line(event, virtual=cell.is_virtual))

    def on_end(self, cell: Cell, state: State, reason: str) -> None:
        """Write the final state of the cell."""
        self._line(cell, f"{state}: {reason}" if reason else state)

    def on_interrupt(self) -> None:
        """Show that the runs stop and write their checkpoints."""
        self._console.print("interrupted: the runs under way write their checkpoints", markup=False)

    def finish(self, comparison: Comparison) -> None:
        """Write the table as lines, and the path of the page."""
        for line in ("", *comparison.table().splitlines(), *comparison.notes, f"page: {comparison.report}"):
            self._console.print(line, markup=False, soft_wrap=True)

    def _line(self, cell: Cell, text: str) -> None:
        self._console.print(f"{_name(cell)}: {text}", markup=False, soft_wrap=True)


@dataclass
class _Shown:
    """The row of one cell in the view."""

    cell: Cell
    state: State = "waiting"
    progress: Progress | None = None
    events: int = 0


class LiveGrid(GridDisplay):
    """A live table with a row for each cell: progress, loss, metrics, bytes and time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._cells: dict[str, _Shown] = {}
        self._note = ""
        self._next = 0.0

    def on_cells(self, cells: Sequence[Cell]) -> None:
        """Add a row for each cell."""
        self._cells = {cell.name: _Shown(cell) for cell in cells}

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update(Text("checking the cells ..."), refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the view; the final table or an error follows."""
        self._live.stop()

    def on_start(self, cell: Cell) -> None:
        """Mark the cell as running."""
        self._cells[cell.name].state = "running"

    def on_progress(self, cell: Cell, progress: Progress) -> None:
        """Keep the progress for the next refresh."""
        self._cells[cell.name].progress = progress

    def on_event(self, cell: Cell, event: Event) -> None:  # noqa: ARG002
        """Count the event."""
        self._cells[cell.name].events += 1

    def on_end(self, cell: Cell, state: State, reason: str) -> None:  # noqa: ARG002 - the final table shows it
        """Set the final state of the cell."""
        self._cells[cell.name].state = state

    def on_interrupt(self) -> None:
        """Show that the runs stop and write their checkpoints."""
        self._note = "interrupted: the runs under way write their checkpoints; Ctrl-C again kills them"

    def on_poll(self) -> None:
        """Draw if the next refresh is due."""
        if time.monotonic() >= self._next:
            begin = time.monotonic()
            self._live.update(self.picture(), refresh=True)
            self._next = time.monotonic() + max(REFRESH_S, 20 * (time.monotonic() - begin))

    def finish(self, comparison: Comparison) -> None:
        """Print the table and the path of the page."""
        from chimera.report.comparison_page.table import as_rich, baseline_note

        print_table(as_rich(comparison.plain()), self._console)
        for note in (baseline_note(comparison.plain()), *comparison.notes):
            if note:
                self._console.print(Text(note, style="dim"))
        page = comparison.report
        link = "cyan" if isinstance(page, str) else f"cyan link {page.resolve().as_uri()}"
        self._console.print(Text(f"page: {page}", style=link))

    def picture(self) -> Group:
        """Return the view: the table of the cells and a note."""
        max_lines = max(self._console.height - _OTHER_LINES, 4)
        lines = list(self._cells.values())
        ended = [line for line in lines if line.state not in ("running", "waiting")]
        hidden = ended[: max(len(lines) - max_lines, 0)]  # hide the cells that ended first
        table = _table([line for line in lines if line not in hidden])
        more = f"and {len(hidden)} more that have ended\n" if hidden else ""
        return Group(table, Text(more, style="dim").append(self._note, style="yellow"))


def _table(lines: Sequence[_Shown]) -> TextTable:
    """Return a row for each cell; its figures are from its last progress report."""
    figures = [dict(_figures(line.cell, line.progress)) if line.progress else {} for line in lines]
    metrics = dict.fromkeys(name for line in lines for name in (line.progress.metrics if line.progress else ()))
    more = [name for name in metrics if name != "loss"]
    virtual = all(line.cell.is_virtual for line in lines)
    times = [
        seconds(line.progress.seconds, virtual=line.cell.is_virtual and not virtual) if line.progress else ""
        for line in lines
    ]

    def figure(name: str, importance: int) -> TextColumn:
        return TextColumn(name.replace("_", " "), [row.get(name, "") for row in figures], importance, is_number=True)

    return TextTable(
        [
            TextColumn("cell", [_name(line.cell) for line in lines], style="bold"),
            TextColumn("state", [Text(line.state, _COLOURS.get(line.state, "dim")) for line in lines], 1),
            TextColumn("done", [_bar(line) for line in lines], 2),
            figure("loss", 5),
            *(figure(name, importance) for name, importance in zip(more, _METRICS, strict=False)),
            figure("up", 9),
            figure("down", 10),
            TextColumn("virtual time" if virtual else "time", times, 4, is_number=True),
        ],
        instead="widen the terminal",
    )


def _bar(line: _Shown) -> ProgressBar | Text:
    if line.progress is None:
        return Text()
    done = 1.0 if line.state == "finished" else min(max(line.progress.fraction or 0.0, 0.0), 1.0)
    return ProgressBar(total=1.0, completed=done, width=10, complete_style="cyan", finished_style="green")


def _figures(cell: Cell, progress: Progress) -> list[tuple[str, str]]:
    time_told = seconds(progress.seconds, virtual=cell.is_virtual)
    figures = [("round", str(progress.rounds)), ("time", time_told)]
    figures += [] if progress.loss is None else [("loss", measure(progress.loss))]
    figures += [(f"test {name}" if name == "loss" else name, measure(v)) for name, v in progress.metrics.items()]
    return [*figures, ("up", decimal(progress.bytes_up)), ("down", decimal(progress.bytes_down))]


def _name(cell: Cell) -> str:
    return cell.label if cell.seed is None else f"{cell.label}, seed {cell.seed}"
