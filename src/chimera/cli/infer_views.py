"""What `chimera infer` shows of jobs, workers and members: as tables, live tables or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from chimera.cli.rows import line, printed

if TYPE_CHECKING:
    from rich.table import Table

    from chimera.inference.client import Client

REFRESH_S = 0.5


def show(client: Client, what: str, *, as_json: bool, watch: bool) -> None:
    """Show rows: once, or live until Ctrl-C; with JSON a line of all rows each time."""
    if not watch:
        rows = client.rows(what)
        if as_json:
            typer.echo(line(rows))
        else:
            printed(_table(what, rows))
        return
    for rows in _again(lambda: client.rows(what)):
        if as_json:
            typer.echo(line(rows))
        else:
            _live(what, client, rows)
            return


def _again(look: Callable[[], list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield look()
        time.sleep(REFRESH_S)


def _live(what: str, client: Client, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(_table(what, rows), console=Console(), auto_refresh=False) as live:
        for rows in _again(lambda: client.rows(what)):
            live.update(_table(what, rows), refresh=True)


def _table(what: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the rows of a view with the columns that a person wants."""
    from rich.table import Table

    columns = COLUMNS[what]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, _, right in columns:
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(show(row) for _, show, _ in columns))
    return table


def _text(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row.get(key) is None else str(row[key])


def _number(key: str, form: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row.get(key) is None else format(row[key], form)


def _progress(row: Mapping[str, Any]) -> str:
    return f"{row.get('finished', row.get('processed'))}/{row['queries']}"


_OF_JOB = [("job", _text("job"), True), ("name", _text("name"), False)]
COLUMNS: dict[str, list[tuple[str, Callable[[Mapping[str, Any]], str], bool]]] = {
    "jobs": [
        *_OF_JOB,
        ("state", _text("state"), False),
        ("queries", _progress, True),
        ("errors", _text("errors"), True),
        ("weight", _number("weight", "g"), True),
        ("batch size", _text("batch_size"), True),
    ],
    "rate": [
        *_OF_JOB,
        ("state", _text("state"), False),
        ("queries/s", _number("rate", ".2f"), True),
        ("processed", _progress, True),
        ("weight", _number("weight", "g"), True),
    ],
    "stats": [
        *_OF_JOB,
        ("processed", _text("processed"), True),
        *(
            (f"{name} s/query", _number(f"{name}_s", ".4f"), True)
            for name in ("mean", "std", "median", "p90", "p95", "p99")
        ),
    ],
    "workers": [
        ("worker", _text("worker"), False),
        ("state", _text("state"), False),
        ("job", _text("job"), True),
        ("models in memory", _text("models"), True),
    ],
    "members": [
        ("name", _text("name"), False),
        ("role", _text("role"), False),
        ("state", _text("state"), False),
        ("host", _text("host"), False),
        ("pid", _text("pid"), True),
        ("epoch", _text("epoch"), True),
        ("address", _text("address"), False),
        ("last word", _number("heartbeat_age_s", ".1f"), True),
    ],
}
