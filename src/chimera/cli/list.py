"""``chimera list``: what can be named in an experiment file or on a command line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from chimera.core.registry import Entry, Registry

FAMILIES = {
    "strategies": "chimera.strategies.strategy:STRATEGIES",
    "topologies": "chimera.strategies.topologies.topology:TOPOLOGIES",
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
    """List strategies, topologies, codecs, engines, partitions, models, data sets and policies, with their options."""
    if family is not None and family not in FAMILIES:
        raise ConfigurationError(f"there is no family {family!r} to list; families: {', '.join(FAMILIES)}")
    from rich.console import Console

    from chimera.core.registry import load_object

    console = Console() if sys.stdout.isatty() else Console(width=10_000)  # in a pipe, one line for each
    for name in [family] if family else FAMILIES:
        _show(console, name, load_object(FAMILIES[name]))


def _show(console: Console, family: str, registry: Registry[Any]) -> None:
    from rich.table import Table

    table = Table(
        title=family, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("name", style="bold cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column("options", style="dim")
    table.add_column("needs", no_wrap=True)
    for entry in registry.entries():
        options = "  ".join(options_of(entry, GIVEN.get(family, ())))
        table.add_row(entry.name, _escaped(entry.summary.replace("`", "")), _escaped(options), _needs(entry))
    console.print(table)
    console.print()


def options_of(entry: Entry[Any], given: Collection[str] = ()) -> Iterator[str]:
    """Yield each option that an experiment file may set, as ``name=default`` or ``name (required)``."""
    for name, parameter in inspect.signature(entry.factory).parameters.items():
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
    extra = f"chimera-dml[{entry.extra or 'all'}]"
    return (
        f"[green]{_escaped(extra)}[/green]" if entry.available else f"[yellow]{_escaped(extra)}, not installed[/yellow]"
    )


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
