"""Tables for a terminal, with columns chosen by its width. In a pipe or file, they have all columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from chimera.core.printable import printable

Cell: TypeAlias = RenderableType
JSON_INSTEAD = "widen the terminal or use --json"
FILE_INSTEAD = "widen the terminal or write to a file"

_GAP, _INDENT = 2, 4
_MAX_KEY_SHARE = 0.6  # fraction of the width; a longer key is wrapped
_MIN_KEY_SHARE = 0.5


@dataclass(frozen=True)
class TextColumn:
    """One column of a table.

    Attributes
    ----------
    heading : heading, never truncated.
    cells : one for each row.
    importance : 0 for key columns, which name the rows and are always shown. If the terminal is too narrow, columns with the
        largest numbers are left out first.
    least : minimum width if texts may be wrapped; None for numbers, which are not wrapped.
    long : whether texts may have any length; if the terminal is too narrow, each text is shown below its row.
    is_number : whether to align to the right.
    style : rich style of the texts.
    """

    heading: str
    cells: Sequence[Cell]
    importance: int = 0
    least: int | None = None
    long: bool = False
    is_number: bool = False
    style: str = ""


class Figures:
    """Texts in sequence on as many lines as needed. Lines break between texts, never within one."""

    def __init__(self, parts: Sequence[Text | str], gap: int = 2) -> None:
        self._parts = [Text(part) if isinstance(part, str) else part for part in parts]
        self._gap = gap

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the widths of the longest part, and of all in one line."""
        lengths = [part.cell_len for part in self._parts] or [0]
        return Measurement(max(lengths), sum(lengths) + self._gap * (len(lengths) - 1))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        text, used = Text(overflow="fold"), 0
        for part in self._parts:
            if used and used + self._gap + part.cell_len > options.max_width:
                text.append("\n")
                used = 0
            text.append(" " * self._gap if used else "").append_text(part)
            used += part.cell_len + (self._gap if used else 0)
        yield text


@dataclass(frozen=True)
class TextTable:
    """A table that fits the width of the terminal. Print it with `print_table` if the output may not be a terminal.

    Attributes
    ----------
    columns : columns in order.
    title : title above the table.
    headings : whether to show headings.
    instead : advice on how to see the columns that are left out.
    """

    columns: Sequence[TextColumn]
    title: str = ""
    headings: bool = True
    instead: str = JSON_INSTEAD

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the rows with long texts below them, and the names of the columns that are left out."""
        unbounded = options.update(max_width=1 << 20)
        columns = [replace(column, cells=[_clean(cell) for cell in column.cells]) for column in self.columns]
        headings = [column.heading if self.headings else "" for column in columns]
        widths = [
            _Widths.of(column, heading, max((_width(cell, console, unbounded) for cell in column.cells), default=0))
            for column, heading in zip(columns, headings, strict=True)
        ]
        width = options.max_width if console.is_terminal else None
        layout = _Layout.of(columns, widths, width)
        if self.title:
            yield Text(self.title, "bold")
        wide = unbounded if width is None else options
        table = self._table(columns, layout, self.headings)
        for row in range(len(columns[0].cells) if columns else 0):
            table.add_row(*(columns[i].cells[row] for i in layout.widths))
            below = [_below(columns[i], row) for i in layout.below if columns[i].cells[row]]
            if below:
                yield from console.render(table, wide)
                yield from below
                table = self._table(columns, layout, headings=False)
        if table.row_count or (self.headings and not (columns and columns[0].cells)):
            yield from console.render(table, wide)
        if layout.left_out:
            names = ", ".join(columns[i].heading for i in layout.left_out)
            yield Text(f"not shown: {names}; {self.instead}", "dim")

    def _table(self, columns: Sequence[TextColumn], layout: _Layout, headings: bool) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", show_header=headings)
        for i, width in layout.widths.items():
            column = columns[i]
            table.add_column(
                Text(column.heading),
                justify="right" if column.is_number else "left",
                width=width,
                overflow="fold",
                style=column.style,
            )
        return table


def print_table(table: TextTable, console: Console) -> None:
    """Print a table in the width of the terminal or, if the console is not a terminal, in its full width."""
    console.print(table, crop=False)


@dataclass(frozen=True)
class _Widths:
    """The natural and the minimum width of a column; a heading may take two lines."""

    natural: int
    least: int
    heading: int

    @classmethod
    def of(cls, column: TextColumn, heading: str, cells: int) -> _Widths:
        words = heading.split()
        halves = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(len(words))]
        half = min((max(map(len, pair)) for pair in halves), default=0)
        least = cells if column.least is None else min(cells, column.least)
        return cls(max(len(heading), cells), max(half, least), half)

    def within(self, width: int, *, key: bool) -> int:
        """Return the minimum width in a given room; a key keeps its natural width unless it takes most of the room."""
        if not key:
            return self.least
        return max(int(_MIN_KEY_SHARE * width), self.heading) if self.natural > _MAX_KEY_SHARE * width else self.natural


@dataclass(frozen=True)
class _Layout:
    """The layout: widths of the shown columns by index, columns whose texts are below the rows, and columns left out."""

    widths: dict[int, int]
    below: Sequence[int] = ()
    left_out: Sequence[int] = ()

    @classmethod
    def of(cls, columns: Sequence[TextColumn], widths: Sequence[_Widths], width: int | None) -> _Layout:
        natural = {i: each.natural for i, each in enumerate(widths)}
        if width is None or _in_all(natural.values()) <= width:
            return cls(natural)
        below = [i for i in natural if columns[i].long]
        given = {i: widths[i].within(width, key=not columns[i].importance) for i in natural if i not in below}
        left_out = []
        for i in sorted(given, key=lambda i: columns[i].importance, reverse=True):
            if _in_all(given.values()) <= width or not columns[i].importance:
                break
            del given[i]
            left_out.append(i)
        free = width - _in_all(given.values())
        if free < 0:  # the keys alone are too wide: wrap the widest within words
            widest = max(given, key=given.__getitem__)
            given[widest] = max(given[widest] + free, 1)
        for i in sorted(given, key=lambda i: columns[i].importance):
            more = max(min(free, natural[i] - given[i]), 0)
            given[i] += more
            free -= more
        return cls(given, below, sorted(left_out))


def _in_all(widths: Collection[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1) if widths else 0


def _width(cell: Cell, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options, cell).maximum


def _clean(cell: Cell) -> Cell:
    """Return a text as one line without control characters, which a terminal would execute; other cells unchanged."""
    if not isinstance(cell, str):
        return cell
    return Text(printable(cell))


def _below(column: TextColumn, row: int) -> Padding:
    cell = column.cells[row]
    text = Text.assemble((f"{column.heading}: ", "dim"), cell if isinstance(cell, Text) else str(cell), overflow="fold")
    text.stylize(column.style, len(column.heading) + 2)
    return Padding(text, (0, 0, 0, _INDENT))
