"""``chimera list``: what can be named in an experiment file or on a command line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from chimera.core.registry import Entry

FAMILIES = {
    "strategies": "chimera.strategies.strategy:STRATEGIES",
    "topologies": "chimera.strategies.topologies.topology:TOPOLOGIES",
    "aggregations": "chimera.training.aggregation.aggregation:AGGREGATIONS",
    "codecs": "chimera.codecs.codec:CODECS",
    "engines": "chimera.core.engine:ENGINES",
    "partitions": "chimera.data.partition:PARTITIONERS",
    "models": "chimera.models.model:MODELS",
    "datasets": "chimera.data.dataset:DATASETS",
    "policies": "chimera.inference.policies.policy:POLICIES",
}
GIVEN = {
    "models": ("input_shape", "outputs", "task", "counts")
}  # what the trainer passes itself, since it knows the data


def list_plugins(
    family: Annotated[
        str | None, typer.Argument(metavar=f"[{'|'.join(FAMILIES)}]", show_default=False, help="Only this family.")
    ] = None,
) -> None:
    """List strategies, topologies, aggregations, codecs, engines, partitions, models, data sets and policies."""
    if family is not None and family not in FAMILIES:
        raise ConfigurationError(f"there is no family {family!r} to list; families: {', '.join(FAMILIES)}")
    from rich.console import Console

    from chimera.core.registry import load_object

    in_pipe = not sys.stdout.isatty()
    console = Console(width=10_000) if in_pipe else Console()
    for name in [family] if family else FAMILIES:
        rows = [_row(entry, GIVEN.get(name, ())) for entry in load_object(FAMILIES[name]).entries()]
        console.print(_one_line_each(name, rows) if in_pipe else _paragraphs(name, rows))
        console.print()


def _row(entry: Entry[Any], given: Collection[str]) -> dict[str, str]:
    """Return what there is to say about a plug-in, by column."""
    return {
        "name": entry.name,
        "family": getattr(entry.factory, "family", ""),
        "what it is": entry.summary.replace("`", ""),
        "paper": entry.paper,
        "options": "  ".join(options_of(entry, given)),
        "needs": _needs(entry),
    }


def _one_line_each(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    shown = [column for column in rows[0] if any(row[column] for row in rows)]
    table = _table(title)
    for column in shown:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(_escaped(row[column]) for column in shown))
    return table


def _paragraphs(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    """For a terminal: what it is, and below that the paper and the options, which would make the lines too long."""
    from rich.text import Text

    table = _table(title)
    shown = [column for column in ("name", "family") if any(row[column] for row in rows)]
    for column in shown:
        table.add_column(column, style="bold cyan" if column == "name" else "", no_wrap=True)
    table.add_column("what it is")
    styles = {"what it is": "", "paper": "italic", "options": "dim", "needs": "yellow"}
    for row in rows:
        said = {**row, "needs": f"needs {row['needs']}" if row["needs"] else ""}
        lines = [Text(said[column], style) for column, style in styles.items() if said[column]]
        table.add_row(*(_escaped(row[column]) for column in shown), Text("\n").join(lines))
    return table


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def options_of(entry: Entry[Any], given: Collection[str] = ()) -> Iterator[str]:
    """Yield each option that an experiment file may set, as ``name=default`` or ``name (required)``."""
    from chimera.core.registry import parameters_of

    for name, parameter in parameters_of(entry.factory).items():
        if name in given or parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        if parameter.default is not parameter.empty:
            yield f"{name}={_shown(parameter.default)}"
        elif parameter.kind is parameter.KEYWORD_ONLY or inspect.isclass(entry.factory):
            yield f"{name} (required)"


def _shown(default: Any) -> str:
    return getattr(default, "__name__", None) or repr(default)


def _needs(entry: Entry[Any]) -> str:
    if entry.extra is None and entry.requires is None:
        return ""
    return f"chimera-dml[{entry.extra or 'all'}]" + ("" if entry.available else ", not installed")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
