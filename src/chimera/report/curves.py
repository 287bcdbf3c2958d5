"""Curves of a run: loss and metrics over time, rounds or samples, and bytes, thinned to the points that a chart can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.report.run_files import CLIENT, WORKER_METRICS, RunFiles, finite, is_metric
from chimera.report.unigram_baseline import unigram_baseline
from chimera.report.units import bytes_unit, clock, counts_unit, time_unit

Floats: TypeAlias = NDArray[np.float64]

FRACTIONS = frozenset({"accuracy", "balanced_accuracy", "precision", "recall", "f1", "auc", "top_5_accuracy"})
Role: TypeAlias = Literal["train", "test", "metric"]
_ROLES: dict[str, tuple[Role, str]] = {"train_loss": ("train", "training"), "loss": ("test", "test set")}
_ACRONYMS = frozenset({"auc", "f1", "mae", "mape", "mse", "r2", "rmse"})
_LOG_FROM_RATIO = 100.0
_LEAST_ON_LOG_SCALE = 1e-100  # the limits of the axis would be 0 and infinite for the smallest numbers
_MAX_PANELS = 4
_MAX_MARKS = 200
MAX_LINES = 8  # marks over the full height; if there are more, each is a short line at the bottom


@dataclass(frozen=True, eq=False)
class Curve:
    """One line: ``x`` and ``y`` of shape (n,), finite. ``place`` is its index in the panel, from 0."""

    label: str
    role: Role
    x: Floats
    y: Floats
    place: int = 0


@dataclass(frozen=True)
class Level:
    """A horizontal reference line: ``kind`` is ``target`` or ``unigram`` (loss of the unigram model)."""

    kind: Literal["target", "unigram"]
    label: str
    y: float


@dataclass(frozen=True, eq=False)
class Panel:
    """One chart.

    Attributes
    ----------
    y_label, x_label : labels of the axes, with units.
    curves : the lines; at least one.
    log : whether y is logarithmic.
    x_max : end of the x axis, which starts at 0.
    x_whole : whether x has whole numbers only.
    levels : horizontal reference lines.
    marks : x of each event in which an actor was lost.
    not_finite : x of the first loss value that was NaN or infinite, if any.
    """

    y_label: str
    x_label: str
    curves: tuple[Curve, ...]
    log: bool
    x_max: float
    x_whole: bool = False
    levels: tuple[Level, ...] = ()
    marks: tuple[float, ...] = ()
    not_finite: float | None = None


@dataclass(frozen=True, eq=False)
class _Axis:
    label: str
    x: Floats
    marks: tuple[float, ...] = ()
    whole: bool = False


def panels(run: RunFiles, max_points: int = 400) -> list[list[Panel]]:
    """Return rows of panels: the loss, then the metrics, each over time, rounds (or samples) and bytes (if not zero)."""
    if not run.metrics:
        return []
    names = _metric_names(run.metrics)
    groups: list[list[str]] = [["train_loss", "loss"]]
    fractions = [name for name in names if name in FRACTIONS]
    groups += [fractions] if fractions else []
    groups += [[name] for name in names if name != "loss" and name not in FRACTIONS]
    columns = {
        name: np.array([finite(row.get(name)) for row in run.metrics]) for name in ("train_loss", "loss", *names)
    }
    rows = [[_panel(axis, group, columns, run, max_points) for axis in _axes(run)] for group in groups]
    return [drawn for row in rows if (drawn := [panel for panel in row if panel is not None])][:_MAX_PANELS]


def _metric_names(metrics: Sequence[dict[str, Any]]) -> list[str]:
    seen: dict[str, None] = {}
    for row in metrics:
        seen.update({k: None for k, v in row.items() if is_metric(k, v) and not k.startswith(CLIENT)})
    return list(seen)


def _axes(run: RunFiles) -> list[_Axis]:
    seconds, rounds, up, down = (
        np.array([finite(row.get(key, 0)) for row in run.metrics])
        for key in ("seconds", "round", "bytes_up", "bytes_down")
    )
    lost = [event for event in run.events if "lost" in str(event.get("event", ""))][:_MAX_MARKS]
    second, time_name = time_unit(float(np.nanmax(seconds, initial=0)))
    one, bytes_name = bytes_unit(float(np.nanmax(up + down, initial=0)))
    axes = [
        _Axis(
            f"{clock(run.is_virtual)} ({time_name})",
            seconds / second,
            tuple(finite(e.get("seconds")) / second for e in lost),
        ),
        _samples_per_worker(run, lost) or _Axis("Rounds", rounds, tuple(finite(e.get("round")) for e in lost), True),
        _Axis(f"Data moved, up and down ({bytes_name})", (up + down) / one),
    ]
    return axes if np.nanmax(up + down, initial=0) > 0 else axes[:2]


def _samples_per_worker(run: RunFiles, lost: Sequence[dict[str, Any]]) -> _Axis | None:
    """Return the axis of samples per worker for runs with uninformative rounds (see `RunFiles.shows_samples`), else None."""
    if not run.shows_samples or not run.workers:
        return None
    seconds, samples = (np.array([finite(row.get(key)) for row in run.metrics]) for key in ("seconds", "samples"))
    known = np.isfinite(seconds) & np.isfinite(samples)
    if not known.any():
        return None
    at = np.array([finite(event.get("seconds")) for event in lost])
    each, marks = samples / run.workers, np.interp(at, seconds[known], samples[known]) / run.workers
    one, unit = counts_unit(float(np.nanmax(each)))
    return _Axis(f"Samples per worker{unit}", each / one, tuple((marks / one).tolist()), whole=one == 1)


def _panel(axis: _Axis, group: list[str], columns: dict[str, Floats], run: RunFiles, max_points: int) -> Panel | None:
    curves: list[Curve] = []
    for name in group:
        y = columns[name]
        good = np.isfinite(y) & np.isfinite(axis.x)
        if good.any():
            role, label = _ROLES.get(name, ("metric", name.replace("_", " ")))
            x, y = thinned(axis.x[good], y[good], max_points, average=role == "train")
            curves.append(Curve(label, role, x, y, place=len(curves)))
    if not curves:
        return None
    is_loss = "loss" in group
    everything = np.concatenate([curve.y for curve in curves])
    log = everything.min() > _LEAST_ON_LOG_SCALE and everything.max() / everything.min() > _LOG_FROM_RATIO and is_loss
    broken = [
        axis.x[i]
        for i, row in enumerate(run.metrics)
        if is_loss and any(name in row and not np.isfinite(columns[name][i]) for name in group)
    ]
    title = "Loss" if is_loss else _title(group)
    panel = Panel(
        y_label=title
        + (" (log scale)" if log else "")
        + ("" if is_loss or WORKER_METRICS.issuperset(group) else ", test set"),
        x_label=axis.label,
        curves=tuple(curves),
        log=bool(log),
        x_max=float(np.nanmax(axis.x, initial=0)) or 1.0,
        x_whole=axis.whole,
        marks=tuple(mark for mark in axis.marks if np.isfinite(mark)),
        not_finite=float(broken[0]) if broken else None,
    )
    return replace(panel, levels=_levels(run, group, panel))


def _levels(run: RunFiles, group: list[str], panel: Panel) -> tuple[Level, ...]:
    """Return the reference lines that are close enough to the curves not to flatten them."""
    known, wanted = unigram_baseline(run.summary), [name for name in group if name in run.target]
    levels = [Level("unigram", "unigram model", known.unigram)] if known and known.metric in group else []
    label = "target" if len(wanted) == 1 else "target of {}"
    levels += [Level("target", label.format(name.replace("_", " ")), run.target[name]) for name in wanted]
    scale = np.log if panel.log else np.asarray
    low, high = (float(scale(end)) for end in y_range(panel))
    near = (level for level in levels if not panel.log or level.y > 0)
    return tuple(level for level in near if 2 * low - high <= float(scale(level.y)) <= 2 * high - low)


def _title(group: list[str]) -> str:
    name = group[0].replace("_", " ") if len(group) == 1 else "metrics"
    return name.upper() if name in _ACRONYMS else name[:1].upper() + name[1:]


def thinned(x: Floats, y: Floats, most: int, *, average: bool) -> tuple[Floats, Floats]:
    """Return at most ``most`` points: means of neighbours (``average``, for noisy curves), or evenly spaced points."""
    if len(x) <= most:
        return x, y
    if not average:
        kept = np.linspace(0, len(x) - 1, most).round().astype(int)
        return x[kept], y[kept]
    bounds = np.linspace(0, len(x), most + 1).round().astype(int)
    sizes = np.diff(bounds)
    return np.add.reduceat(x, bounds[:-1]) / sizes, np.add.reduceat(y, bounds[:-1]) / sizes


def y_range(panel: Panel) -> tuple[float, float]:
    """Return the limits of the y axis, with a margin. It starts at 0 if the values come close to 0."""
    everything = np.concatenate([*(curve.y for curve in panel.curves), [level.y for level in panel.levels]])
    low, high = float(everything.min()), float(everything.max())
    if panel.log:
        margin = (high / low) ** 0.05
        return low / margin, high * margin
    margin = 0.06 * (high - low) or 0.15 * abs(high) or 1.0
    below = 0.0 if 0 <= low < 0.35 * high or low == high > 0 else low - margin
    return below, high + margin
