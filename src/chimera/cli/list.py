"""``chimera list``: the plug-ins that an experiment file or a command line can name."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from chimera.core.registry import Entry

FAMILIES = {
    "strategies": "chimera.strategies.strategy:STRATEGIES",
    "topologies": "chimera.strategies.topologies.topology:TOPOLOGIES",
    "aggregations": "chimera.training.aggregation.aggregation:AGGREGATIONS",
    "codecs": "chimera.codecs.codec:CODECS",
    "engines": "chimera.core.engine:ENGINES",
    "availability": "chimera.engines.simulated.models.presence_models:AVAILABILITY",
    "devices": "chimera.engines.simulated.models.devices:DEVICES",
    "networks": "chimera.engines.simulated.models.topology:TOPOLOGIES",
    "partitions": "chimera.data.partition:PARTITIONERS",
    "models": "chimera.models.model:MODELS",
    "datasets": "chimera.data.split:DATASETS",
    "policies": "chimera.inference.policies.policy:POLICIES",
    "trackers": "chimera.training.tracking.tracker:TRACKERS",
}
PASSED_BY_TRAINER = {
    "models": ("input_shape", "outputs", "count_outputs", "task", "counts")
}  # the trainer passes these arguments, since it knows the data


def list_plugins(
    family: Annotated[
        str | None,
        typer.Argument(
            metavar=f"[{'|'.join(FAMILIES)}]", show_default=False, help="List only this family; default: all."
        ),
    ] = None,
) -> None:
    """List strategies, topologies, aggregations, codecs, engines and their parts, partitions, models, data and others."""
    if family is not None and family not in FAMILIES:
        raise ConfigurationError(f"there is no family {family!r} to list; families: {', '.join(FAMILIES)}")
    from chimera.cli.rows import Shown, printed, table
    from chimera.core.registry import load_object
    from chimera.report.text_table import FILE_INSTEAD

    columns = (
        Shown("name", 0, style="bold cyan"),
        Shown("family", 2),
        Shown("what it is", 1, least=30),
        Shown("paper", 3, long=True, style="italic"),
        Shown("options", 4, long=True),
        Shown("needs", 5, long=True, style="yellow"),
        Shown("from", 6, style="magenta"),
    )
    for name in [family] if family else FAMILIES:
        rows = [_row(entry, PASSED_BY_TRAINER.get(name, ())) for entry in load_object(FAMILIES[name]).entries()]
        known = [column for column in columns if any(row[column.key] for row in rows)]
        printed(table(rows, known, title=name, instead=FILE_INSTEAD))
        typer.echo()


def _row(entry: Entry[Any], given: Collection[str]) -> dict[str, str]:
    """Return the row of a plug-in, by column."""
    return {
        "name": entry.name,
        "family": getattr(entry.factory, "family", ""),
        "what it is": entry.summary.replace("`", ""),
        "paper": entry.paper,
        "options": "  ".join(options_of(entry, given)),
        "needs": _needs(entry),
        "from": entry.distribution,
    }


def options_of(entry: Entry[Any], given: Collection[str] = ()) -> Iterator[str]:
    """Yield each option that an experiment file may set, as ``name=default`` or ``name (required)``."""
    from chimera.core.signatures import parameters_of

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
    return entry.package + ("" if entry.available else ", not installed")
