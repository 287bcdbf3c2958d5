"""``chimera data``: what each worker of an experiment will hold, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from chimera.cli.rows import Shown
    from chimera.core.worker_counts import WorkerCount, WorkerCounts
    from chimera.training.inspection import Inspection

_MAX_WORKERS = 20
_MAX_LABELS = 4  # in the table; the picture has all
_SIGNS = "abcdefghijklmnopqrst"
_WIDEST = 100


def data(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a value of the file, e.g. partition.alpha=0.1. Repeatable."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the labels of each worker to this file, e.g. labels.svg."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show what each worker will hold: samples, labels and groups. Nothing is trained."""
    from chimera.cli.rows import line
    from chimera.training.experiment.experiment import Experiment

    trainer = Experiment.load(file).with_settings(settings or []).trainer()
    found = trainer.inspect_data()
    if plot is not None and found.counts is None:
        raise ConfigurationError(f"--plot: there is nothing to draw: {found.hidden}")
    if as_json:
        typer.echo(line({"data": found.line, "hidden": found.hidden, "counts": found.counts}))
    else:
        _show(found)
    if plot is not None and found.counts is not None:
        from chimera.report.label_plot import save_label_plot

        typer.echo(
            save_label_plot(found.counts, plot, found.line.removeprefix("data: ").partition(" · ")[0]), err=as_json
        )


def _show(found: Inspection) -> None:
    from chimera.cli.rows import printed, table, terminal
    from chimera.report.text_table import JSON_INSTEAD

    if found.line:
        typer.echo(found.line)
    if found.counts is None:
        typer.echo(f"no counts per worker: {found.hidden}")
        return
    counts = found.counts
    typer.echo(_sizes(counts))
    shown = counts.workers[:_MAX_WORKERS]
    printed(table([_row(each, counts) for each in shown], _columns(counts), instead=JSON_INSTEAD))
    rest = len(counts.workers) - len(shown)
    if rest:
        typer.echo(f"and {counted(rest, 'more worker')}; --json lists all")
    typer.echo()
    for text in picture(counts, shown, min(terminal().width, _WIDEST)):
        typer.echo(text)


def _sizes(counts: WorkerCounts) -> str:
    """Return the numbers of workers and samples, and the skew, as one line."""
    if counts.skew is None:
        return f"{counts.sizes}; labels are not known without reading all samples, or the targets are values"
    return f"{counts.sizes}; label skew {counts.skew:.2f} (0: equal shares of labels, near 1: labels that others lack)"


def _columns(counts: WorkerCounts) -> list[Shown]:
    from chimera.cli.rows import Shown

    first = counts.workers[0]
    return [
        Shown("worker", 0),
        Shown("samples", 0, is_number=True),
        *([Shown("test", 1, "test samples", is_number=True)] if first.test is not None else []),
        *([Shown("groups", 2, least=12)] if first.groups is not None else []),
        *(
            [Shown("labels", 1, is_number=True), Shown("counts", 3, "most frequent", least=20)]
            if counts.columns
            else []
        ),
    ]


def _row(worker: WorkerCount, counts: WorkerCounts) -> dict[str, object]:
    from chimera.report.data_per_worker import groups_of

    largest = sorted(zip(worker.counts, counts.columns, strict=True), key=lambda pair: -pair[0])
    held = [f"{name}: {count:,}" for count, name in largest if count]
    more = f"  and {len(held) - _MAX_LABELS} more" if len(held) > _MAX_LABELS else ""
    return {
        "worker": worker.worker,
        "samples": f"{worker.samples:,}",
        "test": worker.test,
        "groups": groups_of(worker),
        "labels": worker.classes,
        "counts": "  ".join(held[:_MAX_LABELS]) + more,
    }


def picture(counts: WorkerCounts, workers: Sequence[WorkerCount], width: int) -> list[str]:
    """Return a bar of characters for each worker, with a character for each label, and a legend, in ``width`` columns.

    The bar of the largest worker fills the width. A label with fewer samples than half a character may be missing.
    """
    signs = _signs(counts)
    names = [each.worker for each in workers]
    bar_width = max(width - max(map(len, names)) - 3, 10)
    largest = max(1, *(each.samples for each in workers))
    what = "labels" if counts.columns else "samples"
    lines = [f"{what} of each worker, {largest / bar_width:.3g} samples per character"]
    keys = [f"{sign} {name}" for sign, name in zip(signs, counts.columns, strict=True) if sign != name]
    lines += [f"  {text}" for text in _wrapped(keys, width - 3)]
    for name, each in zip(names, workers, strict=True):
        bar, before, drawn = "", 0, 0
        for sign, count in zip(signs or ["#"], each.counts or (each.samples,), strict=True):
            before += count
            end = round(before / largest * bar_width)
            bar += sign * (end - drawn)
            drawn = end
        lines.append(f"{name:<{max(map(len, names))}} |{bar}")
    return lines


def _signs(counts: WorkerCounts) -> list[str]:
    """Return a character for each counted label: the label itself if all are single characters, else letters."""
    single = all(len(name) == 1 and name.isprintable() and name not in " .|" for name in counts.labels)
    return [*(counts.labels if single else _SIGNS[: len(counts.labels)]), *("." if counts.more_labels else "")]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for part in (
        "".join(each if each.isprintable() else " " for each in part) for part in parts
    ):  # labels come from files
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines
