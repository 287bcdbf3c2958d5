"""The HTML report of a run: one file without scripts and external resources."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from chimera.core.counted import counted
from chimera.report import svg
from chimera.report.clients import clients
from chimera.report.curves import Panel, panels
from chimera.report.data_per_worker import data_per_worker
from chimera.report.events import RUN, Kind, Mark, kind_of, legend, losses, marks_in, points_of, select_events
from chimera.report.nodes import nodes
from chimera.report.run_files import CLIENT, WORKER_METRICS, RunFiles, finite, read_run, replace_file
from chimera.report.safe_text import safe_text
from chimera.report.settings_tables import tables_of
from chimera.report.staleness import staleness
from chimera.report.timeline import KINDS, Lane, Window, selection, windows
from chimera.report.unigram_baseline import unigram_baseline
from chimera.report.units import clock, in_bytes, in_seconds, linear_ticks, number, tick_labels, time_unit
from chimera.report.word_plot import word_plot

_MAX_LANES = 24
_MAX_EVENTS = 200
_MFU = "model FLOP utilisation"


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` into the folder of a run, finished or not, and return its path.

    Raises
    ------
    ConfigurationError : ``run_dir`` is not the folder of a run, or cannot be written.
    """
    run = read_run(run_dir)
    path = run.folder / "report.html"
    replace_file(path, page(run).encode("utf-8", "replace"))  # JSON may have halves of characters
    return path


def page(run: RunFiles) -> str:
    """Return the whole report as HTML text."""
    style = importlib.resources.files("chimera.report").joinpath("style.css").read_text(encoding="utf-8")
    sections = [
        _header(run),
        _cards(run),
        _section("Learning", _learning(run)),
        _section("Words", word_plot(run)),
        _section("Data per worker", data_per_worker(run)),
        _section("Nodes", nodes(run)),
        _section("Each worker on its own data", clients(run)),
        _section("Staleness of applied gradients", staleness(run)),
        _section("Timeline", _timeline(run)),
        _section(f"{clock(run.is_virtual)} breakdown", _shares(run)),
        _section("Events", _events(run)),
        _section("Configuration", tables_of(run.experiment)),
        _section("Environment", tables_of(run.environment)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe_text(run.name)} · Chimera</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}</section>\n" if body else ""


def _header(run: RunFiles) -> str:
    workers = run.workers
    parts = [run.plugin("strategy"), counted(workers, "worker") if workers else ""]
    parts += [f"{run.plugin(table)} {table}" for table in ("engine", "codec") if run.plugin(table)]
    parts += [run.plugin("model"), run.plugin("data")]
    state = "diverged" if run.diverged else "finished" if run.finished else "unfinished"
    pill = f'<span class="state {state}">{state}</span>'
    notes = "".join(f"<p class='note'>{safe_text(note)}</p>" for note in run.notes)
    if run.is_virtual:
        notes += (
            "<p class='note'>Simulated: all times are virtual and come from the models of network and computers.</p>"
        )
    if isinstance(privacy := run.summary.get("privacy"), Mapping):
        notes += f"<p class='note'>Privacy: {safe_text(privacy.get('guarantee', ''))}.</p>"
        if outside := privacy.get("outside"):
            notes += f"<p class='note'>Not covered: {safe_text('; '.join(map(str, outside)))}.</p>"
    line = " · ".join(safe_text(part) for part in parts if part)
    return f"<header><h1>{safe_text(run.name)} {pill}</h1>\n<p>{line}</p>{notes}</header>\n"


def cards(run: RunFiles) -> list[tuple[str, str, str]]:
    """Return the figures of a run: label, value as text, and ``bad`` for losses, else an empty string."""
    figures = run.figures()
    metrics = figures.get("metrics")
    metrics = dict(metrics) if isinstance(metrics, Mapping) else {}
    first = [name for name in ("accuracy", "loss") if name in metrics]
    named = [*first, *(name for name in metrics if name not in first)][:6]
    where = {name: "" if name in WORKER_METRICS or name.startswith(CLIENT) else ", test set" for name in named}
    shown_metrics = {name: "not finite" if metrics[name] is None else number(metrics[name]) for name in named}
    found = [(name.replace("_", " ") + where[name], shown_metrics[name], "") for name in named]
    if known := unigram_baseline(figures):
        found += [
            ("unigram model", number(known.unigram), ""),
            (f"{known.metric} vs. unigram model", known.difference(), ""),
        ]
    shown = {
        "seconds": (clock(run.is_virtual).lower(), in_seconds),
        "samples_per_second": ("samples/s, virtual" if run.is_virtual else "samples/s", number),
        "tokens_per_second": ("tokens/s, virtual" if run.is_virtual else "tokens/s", number),
        "mfu": (_MFU if not run.is_virtual else f"{_MFU}, virtual", lambda value: f"{float(value):.1%}"),
        "rounds": ("rounds", number),
        "kept_round": ("model of round", number),
        "epochs": ("epochs", lambda value: number(float(value), 3)),
        "samples": ("samples", number),
        "bytes_up": ("up from workers", in_bytes),
        "bytes_down": ("down to workers", in_bytes),
        "bits_per_element_up": ("bits per element, up", lambda value: number(float(value), 3)),
        "bits_per_element_down": ("bits per element, down", lambda value: number(float(value), 3)),
        "delta": ("delta, of epsilon", number),
        "spectral_gap": ("spectral gap", lambda value: number(float(value), 3)),
        "bubble": (f"{clock(run.is_virtual).lower()} that stages wait", lambda value: f"{float(value):.1%}"),
    }
    for key, (label, write) in shown.items():
        value = figures.get(key)
        if isinstance(value, int | float):
            found.append((label, write(value), ""))
    if isinstance(instead := figures.get("epsilon"), str):
        found.append(("epsilon", instead, ""))
    if isinstance(peaks := figures.get("peak_mb"), Mapping):
        found.append(("peak memory by worker, MB", " · ".join(number(peak) for peak in peaks.values()), ""))
    lost = figures.get("lost_workers", 0)
    lost = len(lost) if isinstance(lost, Sequence) else lost
    found.append(("lost workers", number(lost), "bad" if lost else ""))
    if lost_rounds := figures.get("lost_rounds", 0):
        found.append(("lost rounds", number(lost_rounds), "bad"))
    if rejected := figures.get("rejected_gradients", 0):
        found.append(("rejected gradients", number(rejected), "bad"))
    found.append(("stopped by", str(figures.get("stopped_by", "") if run.finished else "unfinished") or "-", ""))
    return found


def _cards(run: RunFiles) -> str:
    items = (
        f'<div class="card {kind}{" long" if len(value) > 14 else ""}">'
        f"<dt>{safe_text(label)}</dt><dd>{safe_text(value)}</dd></div>"
        for label, value, kind in cards(run)
    )
    return f'<dl class="cards">{"".join(items)}</dl>\n'


def _learning(run: RunFiles) -> str:
    rows = panels(run)
    if not rows:
        return "<p class='note'>No round has been recorded.</p>"
    return "".join(
        f"<h3>{safe_text(row[0].y_label)}{_legend(row)}</h3><div class='row'>{_charts(row)}</div>\n" for row in rows
    )


def _legend(row: Sequence[Panel]) -> str:
    items = [(svg.swatch(curve), curve.label) for curve in row[0].curves]
    line = '<svg class="swatch" viewBox="0 0 26 12"><path class="{}" d="M13 0V12"/></svg>'
    level = '<svg class="swatch" viewBox="0 0 26 12"><path class="{}" d="M1 6H25"/></svg>'
    items += [(level.format(each.kind), f"{each.label}: {number(each.y)}") for each in row[0].levels]
    items += [(line.format("lost"), "worker lost")] if row[0].marks else []
    items += [(line.format("broken"), "loss not finite")] if row[0].not_finite is not None else []
    return (
        '<span class="legend">' + "".join(f"<span>{mark}{safe_text(label)}</span>" for mark, label in items) + "</span>"
    )


def _charts(row: Sequence[Panel]) -> str:
    return "".join(f"<figure>{svg.chart(panel)}</figure>" for panel in row)


def _timeline(run: RunFiles) -> str:
    if not run.lanes:
        return ""
    points = points_of(run.events, run.lanes)
    lanes = selection(run.lanes, _MAX_LANES, {point.row for point in points})
    kinds = "".join(f'<span><i class="{kind}"></i>{kind}</span>' for kind in KINDS)
    signs = "".join(f"<span>{_sign(kind)}{safe_text(names)}</span>" for kind, names in legend(points))
    some = f"Shown: {len(lanes)} of {len(run.lanes):,} actors. " if len(lanes) < len(run.lanes) else ""
    views = "".join(
        _view(run, lanes, window, marks_in(window, points, virtual=run.is_virtual))
        for window in windows(run.lanes, losses(points))
    )
    return (
        f"<p class='legend'>{kinds}{signs}</p>{views}"
        f"<p class='note'>{some}{clock(run.is_virtual)} is measured from the start of training. Waiting and transfers inside"
        " a call are drawn at its end. If calls are too short to be drawn separately, the height of a colour is its share"
        " of the time.</p>"
    )


def _sign(kind: Kind, place: str = "") -> str:
    return f'<b class="mark {kind.name}"{place}>{kind.glyph}</b>'


def _view(run: RunFiles, lanes: Sequence[Lane], window: Window, marks: Mapping[str, Sequence[Mark]]) -> str:
    second, unit = time_unit(window.end_s)
    length_s = window.end_s - window.begin_s
    strips = [(lane.actor, svg.lane_strip(lane, window)) for lane in lanes]
    strips += [(RUN, "")] if RUN in marks else []
    rows = []
    for actor, strip in strips:
        signs = "".join(
            _sign(
                mark.kind, f' style="left:{(mark.at_s - window.begin_s) / length_s:.2%}" title="{safe_text(mark.text)}"'
            )
            for mark in marks.get(actor, ())
        )
        name = safe_text(actor)
        rows.append(
            f'<div class="lane"><span class="actor" title="{name}">{name}</span>'
            f'<span class="track">{strip}{signs}</span></div>'
        )
    ticks = linear_ticks(window.begin_s / second, window.end_s / second, 8)
    places = [(tick * second - window.begin_s) / length_s * 100 for tick in ticks]
    labels = zip(places, tick_labels(ticks), strict=True)
    scale = "".join(f'<span style="left:{place:.2f}%">{label}</span>' for place, label in labels)
    return (
        f'<figure class="timeline"><figcaption>{safe_text(window.title)}</figcaption>{"".join(rows)}<div class="lane scale">'
        f'<span class="actor">{clock(run.is_virtual)} ({unit})</span><span class="track">{scale}</span></div></figure>\n'
    )


def _shares(run: RunFiles) -> str:
    if not run.lanes:
        return ""
    lanes = selection(run.lanes, _MAX_LANES, {str(event.get("actor", "")) for event in run.events})
    workers = [lane for lane in run.lanes if lane.is_worker]
    rows = []
    if len(workers) > 1:
        mean = np.mean([lane.shares for lane in workers], axis=0)
        rows.append(
            _share_row(f"all {len(workers):,} workers, mean", mean, sum(len(lane.starts) for lane in workers), None)
        )
    for lane in lanes:
        name = lane.actor + (" (lost)" if lane.lost_s is not None else "")
        rows.append(_share_row(name, lane.shares, len(lane.starts), float(lane.edges[-1] - lane.edges[0])))
    head = "".join(f'<th class="n">{kind}</th>' for kind in KINDS)
    suffix = ", virtual" if run.is_virtual else ""
    return (
        f'<table class="shares"><thead><tr><th>actor</th><th>share of time</th>{head}'
        f'<th class="n">calls</th><th class="n">from first to last{suffix}</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _share_row(name: str, shares: Iterable[float], calls: int, seconds: float | None) -> str:
    fractions = [float(share) for share in shares]
    bar = "".join(
        f'<i class="{kind}" style="width:{share:.2%}"></i>'
        for kind, share in zip(KINDS, fractions, strict=True)
        if share
    )
    cells = "".join(f'<td class="n">{100 * share:.1f} %</td>' for share in fractions)
    length = "" if seconds is None else in_seconds(seconds)
    return (
        f'<tr><th>{safe_text(name)}</th><td><span class="bar">{bar}</span></td>{cells}'
        f'<td class="n">{calls:,}</td><td class="n">{length}</td></tr>'
    )


def _events(run: RunFiles) -> str:
    if not run.events:
        return ""
    rows = []
    shown = select_events(run.events, _MAX_EVENTS)
    for event in shown:
        seconds = event.get("seconds")
        at = in_seconds(finite(seconds)) if isinstance(seconds, int | float) else ""
        cells = f"<td>{_sign(kind_of(event))} {safe_text(event.get('event', ''))}</td>"
        cells += "".join(f"<td>{safe_text(event.get(key, ''))}</td>" for key in ("actor", "detail"))
        rows.append(
            f'<tr><td class="n">{at}</td><td class="n">{safe_text(number(event.get("round", "")))}</td>{cells}</tr>'
        )
    rest = len(run.events) - len(shown)
    more = f"<p class='note'>{counted(rest, 'more event')} in events.jsonl.</p>" if rest > 0 else ""
    head = f'<th class="n">{clock(run.is_virtual).lower()}</th>'
    head += '<th class="n">round</th><th>event</th><th>actor</th><th>detail</th>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="events">{table}</div>{more}'
