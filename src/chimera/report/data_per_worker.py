"""The data of each worker at the start of a run, as a table with a bar of labels for each worker."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import msgspec

from chimera.core.counted import counted
from chimera.core.worker_counts import WorkerCount, WorkerCounts
from chimera.report.run_files import RunFiles
from chimera.report.units import number, significant

MAX_WORKERS = 40
COLOURS = 10
_MIN_SHARE = 0.04  # of the width, for a bar's segment that shows its label
_MAX_LABEL_CHARACTERS = 24


def data_per_worker(run: RunFiles) -> str:
    """Return the table, a legend and a note as HTML; empty if the run has no counts, such as a private run."""
    counts = _counts_of(run.data)
    if counts is None or not counts.workers:
        return ""
    shown, largest = counts.workers[:MAX_WORKERS], max(1, *(each.samples for each in counts.workers))
    columns = counts.columns
    figures = _figures(counts)
    keys = "".join(
        f"<span><i class='{_style(place, counts)}'></i>{_text(name)}</span>" for place, name in enumerate(columns)
    )
    legend = f"<p class='legend labels'>{keys}</p>" if columns else ""
    head = "<th>worker</th><th>samples of each label</th>" if columns else "<th>worker</th><th>samples</th>"
    head += "".join(f'<th class="n">{name}</th>' for name in figures)
    rows = "".join(
        f"<tr><th>{_text(each.worker)}</th><td><span class='bar labels'>{_bar(each, counts, largest)}</span></td>"
        + "".join(f'<td class="n">{cell(each)}</td>' for cell in figures.values())
        + "</tr>"
        for each in shown
    )
    return (
        f"{legend}<table class='held'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p class='note'>{_note(counts, len(shown))}</p>\n"
    )


def _counts_of(table: Mapping[str, Any]) -> WorkerCounts | None:
    """Return the counts in ``data.json``; None if there are none or they are invalid."""
    try:
        return msgspec.convert(table, WorkerCounts) if table else None
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for half a surrogate pair
        return None


def _figures(counts: WorkerCounts) -> dict[str, Any]:
    """Return the numeric columns that the counts have: the heading, and a function of a worker that returns the text."""
    first = counts.workers[0]
    found: dict[str, Any] = {"samples": lambda each: number(each.samples)}
    if first.test is not None:
        found["test samples"] = lambda each: number(each.test)
    if first.classes is not None:
        found["labels"] = lambda each: number(each.classes)
    if first.groups is not None:
        found["groups"] = lambda each: _text(groups_of(each))
    return found


def groups_of(worker: WorkerCount) -> str:
    """Return the names of a worker's groups or, if there are many, their number."""
    return (
        ", ".join(worker.group_names)
        if worker.groups == len(worker.group_names)
        else counted(worker.groups or 0, "group")
    )


def _bar(worker: WorkerCount, counts: WorkerCounts, largest: int) -> str:
    names = counts.columns or ["samples"]
    parts = []
    for place, (name, count) in enumerate(zip(names, worker.counts or (worker.samples,), strict=True)):
        if count:
            share = count / largest
            inside = _text(name) if counts.columns and share >= _MIN_SHARE else ""
            title = f"{_text(worker.worker)}, {_text(name)}: {number(count)} of {number(worker.samples)}"
            style = _style(place, counts)
            parts.append(f"<i class='{style}' style='width:{share:.2%}' title='{title}'>{inside}</i>")
    return "".join(parts)


def _style(place: int, counts: WorkerCounts) -> str:
    """Return the CSS classes of a label; labels after the first ten have the same colours with stripes."""
    if place >= len(counts.labels) and counts.labels:
        return "rest"
    return f"label{place % COLOURS}" + (" striped" if place >= COLOURS else "")


def _note(counts: WorkerCounts, shown: int) -> str:
    text = f"At the start of the run, {counts.sizes}"
    if shown < len(counts.workers):
        text += f"; the first {shown} workers are shown"
    if counts.skew is None:
        return f"{text}."
    return (
        f"{text}. Label skew {significant(counts.skew, 2)}: the mean over workers of the total variation distance between the "
        "labels of a worker and those of all samples (0: equal shares of labels; near 1: labels that others lack)."
    )


def _text(value: str) -> str:
    return escape(value if len(value) <= _MAX_LABEL_CHARACTERS else value[: _MAX_LABEL_CHARACTERS - 1] + "…")
