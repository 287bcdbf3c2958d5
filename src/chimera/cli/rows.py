"""Output of commands: tables and lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

    from chimera.report.text_table import TextTable

Row = Mapping[str, Any]


class Shown(NamedTuple):
    """A column of a table: the key of the rows that it shows, and the rest as of a `TextColumn`."""

    key: str
    importance: int
    heading: str = ""
    is_number: bool = False
    least: int | None = None
    long: bool = False
    style: str = ""


def line(value: Any) -> str:
    """Return a value as one line of JSON."""
    import msgspec

    return msgspec.json.encode(value).decode()


def table(rows: Iterable[Row], columns: Sequence[Shown], **options: Any) -> TextTable:
    """Return these columns of rows; the options are those of a `TextTable`."""
    from chimera.report.text_table import TextColumn, TextTable

    rows = list(rows)
    return TextTable(
        [
            TextColumn(
                column.heading or column.key,
                [_text(row.get(column.key), none="" if column.long else "-") for row in rows],
                column.importance,
                is_number=column.is_number,
                least=column.least,
                long=column.long,
                style=column.style,
            )
            for column in columns
        ],
        **options,
    )


def _text(value: Any, *, none: str) -> str:
    return none if value in (None, "") else str(value)


def terminal() -> Console:
    """Return the console of stdout; with control codes only if stdout is a terminal."""
    from rich.console import Console

    return Console(force_terminal=None if sys.stdout.isatty() else False, highlight=False)


def printed(table: TextTable) -> None:
    """Print a table; in full if stdout is no terminal."""
    from chimera.report.text_table import print_table

    print_table(table, terminal())
