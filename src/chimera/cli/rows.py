"""Rows of what somebody asked for: as a table, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def line(value: Any) -> str:
    """Return a value as one line of JSON."""
    import msgspec

    return msgspec.json.encode(value).decode()


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print these columns of rows."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        shown.add_column(name, no_wrap=True)
    for row in rows:
        shown.add_row(*("-" if row.get(name) in (None, "") else str(row[name]) for name in columns))
    printed(shown)


def printed(table: Table) -> None:
    """Print a table, in full where nobody looks at a terminal."""
    from rich.console import Console

    (Console() if sys.stdout.isatty() else Console(width=10_000)).print(table)
