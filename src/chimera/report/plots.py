"""The plot of a run: loss and metrics over time, rounds and bytes, and the timeline of its actors."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError
from chimera.report.curves import MAX_LINES, Panel, panels, y_range
from chimera.report.events import RUN, Point, legend, losses, marks_in, points_of
from chimera.report.run_files import RunFiles, read_run, replace_file
from chimera.report.timeline import COMPUTE, KINDS, TRANSFER, WAIT, Lane, Window, selection, windows
from chimera.report.units import clock, linear_ticks, log_tick_labels, log_ticks, number, tick_labels, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Okabe and Ito's palette, which colour-blind readers can distinguish. In greyscale, lightness distinguishes the kinds of time,
# and markers and dashes distinguish the curves.
KIND_COLOURS = {COMPUTE: "#0072B2", TRANSFER: "#E69F00", WAIT: "#E4E7EB"}
_LOST = "#C1440E"
_SIGNS = {"lost": _LOST, "rejected": "#A6508A", "back": "#00704D", "fault": "#8A6500", "other": "#222222"}
_SIGN_SIZES = {"lost": 7.0, "rejected": 4.5}
_CURVES = {"train": ("#0072B2", "", "-"), "test": ("#D55E00", "o", "--")}
_LEVELS = {"target": ("#00704D", (0, (6, 3))), "unigram": ("#55606B", (0, (2, 2)))}
_METRICS = (("#007A5A", "o", "-"), ("#A6508A", "s", "--"), ("#8A6500", "^", "-."), ("#444444", "v", ":"))
_STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.edgecolor": "#8A929C",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.formatter.useoffset": False,
    "xtick.color": "#3C434B",
    "ytick.color": "#3C434B",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.usetex": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}
FORMATS = ("png", "pdf", "svg", "eps", "ps", "jpg", "jpeg", "tif", "tiff", "webp")
_WIDTH_IN = 10.0
_PANEL_IN = 2.35
_LANE_IN = 0.24
_MAX_LANES = 16
_DETAIL_SEGMENTS = 600
_BINS = 160


def draw_run(run_dir: str | os.PathLike[str]) -> Figure:
    """Return the plot of a run as a new figure, without changing global state of matplotlib.

    Raises
    ------
    ConfigurationError : ``run_dir`` is not the folder of a run.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    run = read_run(run_dir)
    rows = panels(run)
    points = points_of(run.events, run.lanes)
    lanes = selection(run.lanes, _MAX_LANES, {point.row for point in points})
    views = windows(run.lanes, losses(points))[:2] if lanes else []
    views = views[:1] if len(views) == 2 and "loss" not in views[1].title else views
    heights = [_PANEL_IN] * len(rows) + [
        0.8 + _LANE_IN * len(lanes) + (0.5 if points else 0.3) * (place == 0) for place in range(len(views))
    ]
    with styled():
        layout = ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07)
        figure = Figure(figsize=(_WIDTH_IN, 0.45 + (sum(heights) or 1.5)), layout=layout)
        figure.suptitle(drawable(_title(run), 90), fontsize=11.5, fontweight="bold", x=0.012, ha="left")
        if not heights:
            figure.text(0.5, 0.4, "This run has not recorded anything yet.", ha="center", color="#3C434B")
            return figure
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, row in zip(parts[: len(rows)], rows, strict=True):
            _draw_panels(part, row)
        for place, (part, view) in enumerate(zip(parts[len(rows) :], views, strict=True)):
            _draw_timeline(part, run, lanes, view, points, with_shares=place == 0)
    return figure


def save_plot(run_dir: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the plot of a run to ``path``, in the format of its suffix, and return the path.

    Images have 150 dpi: they are 1500 px wide.

    Raises
    ------
    ConfigurationError : ``run_dir`` is not the folder of a run, or ``path`` has an unknown ending or cannot be written.
    """
    return write_figure(lambda: draw_run(run_dir), path)


def write_figure(draw: Callable[[], Figure], path: str | os.PathLike[str]) -> Path:
    """Draw a figure and write it to ``path``, in the format of its suffix; return the path. Images have 150 dpi.

    Raises
    ------
    ConfigurationError : ``path`` has an unknown ending, for which nothing is drawn, or cannot be written.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in FORMATS:
        known = ", ".join(f".{each}" for each in FORMATS)
        raise ConfigurationError(f"the plot {str(path)!r} is of no format known by its ending; known: {known}")
    picture = io.BytesIO()
    draw().savefig(picture, format=kind, dpi=150)
    replace_file(Path(path), picture.getvalue())
    return Path(path)


def styled() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws in the style of the reports."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def _title(run: RunFiles) -> str:
    workers = run.workers
    size = counted(workers, "worker") if workers else ""
    engine = f"{run.plugin('engine')} engine" if run.plugin("engine") else ""
    parts = [run.name, run.plugin("strategy"), size, engine, "" if run.finished else "unfinished"]
    return " · ".join(part for part in parts if part)


def drawable(text: str, most: int = 32) -> str:
    """Return ``text`` without characters that matplotlib would interpret as a formula or cannot draw."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))
    shown = "".join(c if c.isprintable() and font.get_char_index(ord(c)) else "?" for c in text)
    return (shown if len(shown) <= most else shown[: most - 1] + "…").replace("$", r"\$")


def _draw_panels(part: SubFigure, row: list[Panel]) -> None:
    for place, panel in enumerate(row):
        axes = part.add_subplot(1, len(row), place + 1)
        for curve in panel.curves:
            colour, marker, dashes = _CURVES.get(curve.role) or _METRICS[curve.place % len(_METRICS)]
            few = len(curve.x) <= 30
            axes.plot(
                curve.x,
                curve.y,
                color=colour,
                linestyle=dashes,
                linewidth=1.2 if marker else 1.0,
                marker=(marker if few else "") or ("o" if len(curve.x) == 1 else ""),
                markersize=3.2,
                label=drawable(curve.label).lstrip("_"),
                clip_on=False,
                zorder=3 + curve.place,
            )
        for level in panel.levels:
            colour, pattern = _LEVELS[level.kind]
            label = drawable(f"{level.label}: {number(level.y)}")
            axes.axhline(level.y, color=colour, linewidth=1.0, linestyle=pattern, label=label, zorder=2)
        _mark(axes, panel)
        low, high = y_range(panel)
        axes.set_yscale("log" if panel.log else "linear")
        axes.set_ylim(low, high)
        axes.set_xlim(0, panel.x_max * 1.02)
        x_ticks = linear_ticks(0, panel.x_max * 1.02, 6, whole=panel.x_whole)
        y_ticks = log_ticks(low, high, 6) if panel.log else linear_ticks(low, high, 6)
        axes.set_xticks(x_ticks, tick_labels(x_ticks))
        axes.set_yticks(y_ticks, log_tick_labels(y_ticks) if panel.log else tick_labels(y_ticks))
        axes.minorticks_off()
        axes.grid(True, color="#E4E7EB", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel(drawable(panel.x_label))
        if place == 0:
            axes.set_ylabel(drawable(panel.y_label))

    part.legend(*part.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=6, handlelength=2.2)


def _mark(axes: Axes, panel: Panel) -> None:
    many = len(panel.marks) > MAX_LINES
    for place, mark in enumerate(panel.marks):
        axes.axvline(
            mark,
            ymax=0.07 if many else 1.0,
            color=_LOST,
            linewidth=0.9,
            linestyle="-" if many else (0, (1, 2)),
            label="worker lost" if place == 0 else None,
        )
    if panel.not_finite is not None:
        axes.axvline(panel.not_finite, color="#222222", linewidth=1.0, linestyle=(0, (4, 2)), label="loss not finite")


def _draw_timeline(
    part: SubFigure, run: RunFiles, lanes: list[Lane], view: Window, points: list[Point], *, with_shares: bool
) -> None:
    from matplotlib.patches import Patch

    axes, shares = part.subplots(1, 2, width_ratios=[4, 1], sharey=True)
    second, unit = time_unit(view.end_s)
    for place, lane in enumerate(lanes):
        _draw_lane(axes, lane, view, second, place)
    others = [RUN] if any(point.row == RUN and view.begin_s <= point.at_s <= view.end_s for point in points) else []
    _draw_events(axes, [*(lane.actor for lane in lanes), *others], view, points, second)
    axes.set_xlim(view.begin_s / second, view.end_s / second)
    ticks = linear_ticks(view.begin_s / second, view.end_s / second, 9)
    axes.set_xticks(ticks, tick_labels(ticks))
    names = [drawable(lane.actor) + (" (lost)" if lane.lost_s is not None else "") for lane in lanes]
    axes.set_yticks(range(len(lanes) + len(others)), [*names, *others])
    axes.set_ylim(len(lanes) + len(others) - 0.4, -0.6)
    axes.set_xlabel(f"{clock(run.is_virtual)} since the start of training ({unit})")
    some = f", {len(lanes)} of {len(run.lanes):,} actors" if len(lanes) < len(run.lanes) else ""
    axes.set_title(drawable(f"Timeline: {view.title[0].lower()}{view.title[1:]}{some}", 90), loc="left")
    for each in (axes, shares):
        each.spines["left"].set_visible(False)
        each.tick_params(axis="y", length=0)
    if not with_shares:
        shares.set_axis_off()
        return
    _draw_shares(shares, lanes)
    handles: list[Any] = [Patch(facecolor=KIND_COLOURS[kind], label=KINDS[kind]) for kind in range(3)]
    handles += [_sign(kind.name, kind.marker, drawable(names, 48)) for kind, names in legend(points)]
    part.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.4)


def _sign(name: str, marker: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    size = _SIGN_SIZES.get(name, 5.5)
    sign = Line2D([], [], linestyle="", marker=marker, color=_SIGNS[name], markersize=size, label=label)
    sign.set(markeredgecolor="white", markeredgewidth=0.6)
    return sign


def _draw_events(axes: Axes, rows: list[str], view: Window, points: list[Point], second: float) -> None:
    for row, marks in marks_in(view, points).items():
        for mark in marks if row in rows else ():
            sign = _sign(mark.kind.name, mark.kind.marker, "")
            sign.set_data([mark.at_s / second], [rows.index(row) + 0.3 * mark.kind.height])
            sign.set(clip_on=False, zorder=4)
            axes.add_line(sign)


def _draw_lane(axes: Axes, lane: Lane, view: Window, second: float, place: int) -> None:
    edges, kinds = lane.between(view.begin_s, view.end_s)
    if not len(kinds):
        return
    axes.broken_barh(
        [(edges[0] / second, (edges[-1] - edges[0]) / second)], (place - 0.36, 0.72), facecolor=KIND_COLOURS[WAIT]
    )
    if len(kinds) <= _DETAIL_SEGMENTS:
        for kind in (COMPUTE, TRANSFER):
            which = np.flatnonzero(kinds == kind)
            spans = np.column_stack([edges[which], edges[which + 1] - edges[which]]) / second
            axes.broken_barh(
                [(x, w) for x, w in spans], (place - 0.36, 0.72), facecolor=KIND_COLOURS[kind], linewidth=0
            )
        return
    bounds = np.linspace(view.begin_s, view.end_s, _BINS + 1)
    parts = lane.binned(bounds) / (bounds[1] - bounds[0]) * 0.72
    bottom = np.full(_BINS, place + 0.36)
    for kind in (COMPUTE, TRANSFER):
        top = bottom - parts[kind]
        axes.stairs(top, bounds / second, baseline=bottom, fill=True, facecolor=KIND_COLOURS[kind], linewidth=0)
        bottom = top


def _draw_shares(axes: Axes, lanes: list[Lane]) -> None:
    shares = np.array([lane.shares for lane in lanes]) * 100
    left = np.zeros(len(lanes))
    for kind in range(3):
        axes.barh(range(len(lanes)), shares[:, kind], height=0.72, left=left, color=KIND_COLOURS[kind])
        left += shares[:, kind]
    for place, share in enumerate(shares[:, COMPUTE]):
        inside = share > 30
        x, colour = (2.0, "white") if inside else (98.0, "#222222")
        axes.text(x, place, f"{share:.0f} %", va="center", ha="left" if inside else "right", color=colour, fontsize=8)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    axes.set_xlabel("Share of time (%)")
    axes.set_title("Computing, whole run", loc="left")
    axes.tick_params(axis="y", labelleft=False)
