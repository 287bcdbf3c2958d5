"""Nodes that have the rows of a run: their agreed schema, and the last figures of each node that gives its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.core.counted import counted
from chimera.report.run_files import RunFiles, finite
from chimera.report.safe_text import safe_text
from chimera.report.units import number, significant

_MAX_NODES = 100
_MAX_METRICS = 6
_MAX_NAMES = 12


def nodes(run: RunFiles) -> str:
    """Return a table of the nodes and a note on the schema as HTML; empty if the driver had the data."""
    held = run.data.get("nodes")
    if not isinstance(held, list):
        return ""
    known = [each for each in held if isinstance(each, Mapping)][:_MAX_NODES]
    figures = _last_figures(run)
    names = sorted({name for own in figures.values() for name in own}, key=lambda name: (name != "accuracy", name))
    names = names[:_MAX_METRICS]
    head = "".join(f'<th class="n">{safe_text(name)}</th>' for name in ("training rows", *names))
    rows = "".join(_row(each, figures.get(str(each.get("node")), {}), names) for each in known)
    return (
        f"<table class='held'><thead><tr><th>node</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p class='note'>{_note(run.data)}</p>\n"
    )


def _last_figures(run: RunFiles) -> dict[str, Mapping[str, Any]]:
    for row in reversed(run.metrics):
        if isinstance(found := row.get("clients"), Mapping):
            return {str(node): own for node, own in found.items() if isinstance(own, Mapping)}
    return {}


def _row(node: Mapping[str, Any], own: Mapping[str, Any], names: list[str]) -> str:
    rows = node.get("rows")
    cells = [number(rows) if isinstance(rows, int) else "not given"]
    cells += [significant(finite(own[name]), 4) if name in own else "not given" for name in names]
    shown = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f"<tr><td>{safe_text(node.get('node', ''))}</td>{shown}</tr>"


def _note(data: Mapping[str, Any]) -> str:
    parts = ["The metrics of the run are over the test rows of all nodes that give metrics"]
    columns = data.get("columns")
    if isinstance(columns, list) and columns:
        names = [str(each.get("name")) if isinstance(each, Mapping) else "" for each in columns]
        more = ", ..." if len(names) > _MAX_NAMES else ""
        parts.append(f"{counted(len(names), 'column')}: {safe_text(', '.join(names[:_MAX_NAMES]))}{more}")
    if isinstance(classes := data.get("classes"), list):
        parts.append(
            f"{counted(len(classes), 'class', 'classes')}: {safe_text(', '.join(map(str, classes[:_MAX_NAMES])))}"
        )
    parts.append(f"columns are scaled by: {safe_text(data.get('scaled_by', ''))}")
    return ". ".join(parts) + "."
