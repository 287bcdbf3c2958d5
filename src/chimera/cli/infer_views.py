"""Views of `chimera infer` on jobs, workers and members: tables, live tables, JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import typer

from chimera.cli.rows import Shown, line, printed, table, terminal

if TYPE_CHECKING:
    from chimera.report.text_table import TextTable

REFRESH_S = 0.5


class Reader(Protocol):
    """A client of a cluster, or the journal of one that is down."""

    def rows(self, view: str, /) -> list[dict[str, Any]]:
        """Return the rows of a view."""

    def results(self, job: str, /) -> Iterator[dict[str, Any]]:
        """Yield the results of a job."""


def show(client: Reader, what: str, *, as_json: bool, watch: bool) -> None:
    """Show rows once, or live until Ctrl-C.

    As JSON, print a line with all rows at each update. In a pipe or file, print the table again when it has changed.
    """
    rows = client.rows(what)
    if watch and not as_json and sys.stdout.isatty():
        _live(what, client, rows)
        return
    _print(what, rows, as_json=as_json)
    shown = rows
    for rows in _again(lambda: client.rows(what)) if watch else ():
        if as_json or rows != shown:
            _print(what, rows, as_json=as_json)
            shown = rows


def _print(what: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(line(rows))
    else:
        printed(view(what, rows))
        sys.stdout.flush()


def _again(look: Callable[[], list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    while True:
        time.sleep(REFRESH_S)
        yield look()


def _live(what: str, client: Reader, rows: list[dict[str, Any]]) -> None:
    from rich.live import Live

    with Live(view(what, rows), console=terminal(), auto_refresh=False) as live:
        for rows in _again(lambda: client.rows(what)):
            live.update(view(what, rows), refresh=True)


def view(what: str, rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return the rows of a view, with columns for reading."""
    written = [{key: write(row[key]) for key, write in _WRITTEN.items() if row.get(key) is not None} for row in rows]
    return table([{**row, **more, **_progress(row)} for row, more in zip(rows, written, strict=True)], COLUMNS[what])


def _progress(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the number of a job's queries that have an answer."""
    return {"answered": f"{row.get('finished', row.get('processed'))}/{row['queries']}"} if "queries" in row else {}


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "weight": "{:g}".format,
    "rate": "{:.2f}".format,
    "heartbeat_age_s": "{:.1f} s ago".format,
    **{f"{name}_s": "{:.4f}".format for name in ("mean", "std", "median", "p90", "p95", "p99")},
}
_OF_JOB = (Shown("job", 0, is_number=True), Shown("name", 1, least=16), Shown("state", 2))
COLUMNS: dict[str, tuple[Shown, ...]] = {
    "jobs": (
        *_OF_JOB,
        Shown("answered", 3, "queries", is_number=True),
        Shown("errors", 4, is_number=True),
        Shown("weight", 5, is_number=True),
        Shown("batch_size", 6, "batch size", is_number=True),
    ),
    "rate": (
        *_OF_JOB,
        Shown("rate", 3, "queries/s", is_number=True),
        Shown("answered", 4, "processed", is_number=True),
        Shown("errors", 5, is_number=True),
        Shown("weight", 6, is_number=True),
        Shown("error", 7, "first error", long=True),
    ),
    "stats": (
        *_OF_JOB[:2],
        Shown("processed", 2, is_number=True),
        *(
            Shown(f"{name}_s", importance, f"{name} s/query", is_number=True)
            for name, importance in (("mean", 3), ("std", 7), ("median", 4), ("p90", 8), ("p95", 5), ("p99", 6))
        ),
    ),
    "workers": (
        Shown("worker", 0),
        Shown("state", 1),
        Shown("job", 2, is_number=True),
        Shown("models", 3, "models in memory", is_number=True),
        Shown("host", 4),
        Shown("error", 5, long=True),
    ),
    "members": (
        Shown("name", 0),
        Shown("role", 2),
        Shown("state", 1),
        Shown("host", 5),
        Shown("pid", 6, is_number=True),
        Shown("epoch", 7, is_number=True),
        Shown("address", 4),
        Shown("heartbeat_age_s", 3, "last heartbeat", is_number=True),
    ),
}
