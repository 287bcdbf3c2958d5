"""Charts and lanes of the HTML report as SVG; colours and fonts come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeVar

import numpy as np

from chimera.report.curves import MAX_LINES, Curve, Floats, Panel, y_range
from chimera.report.timeline import COMPUTE, KINDS, TRANSFER, Lane, Window
from chimera.report.units import linear_ticks, log_tick_labels, log_ticks, significant, tick_labels

FloatT = TypeVar("FloatT", float, Floats)

_WIDTH, _HEIGHT = 400, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 42
_CHARACTER = 7.5  # approximate width of a digit; slightly larger in print
_MAX_MARKED_POINTS = 30
_DETAIL_SEGMENTS = 300
_BINS = 160
_LANE_WIDTH, _LANE_HEIGHT = 1000, 20


def chart(panel: Panel) -> str:
    """Return one chart as SVG of 400 by 236 units, which scales to its container."""
    low, high = y_range(panel)
    y_ticks = log_ticks(low, high, 6) if panel.log else linear_ticks(low, high, 6)
    y_names = log_tick_labels(y_ticks) if panel.log else tick_labels(y_ticks)
    x_ticks = linear_ticks(0, panel.x_max * 1.02, 6, whole=panel.x_whole)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_description(panel)}">']
    for tick, name in zip(y_ticks, y_names, strict=True):
        at = float(_y(panel, np.array(tick), low, high))
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 7}" y="{at + 3.8:.1f}" text-anchor="end">{name}</text>')
    for tick, name in zip(x_ticks, tick_labels(x_ticks), strict=True):
        at = _x(panel, tick)
        parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
        inside = min(at, _WIDTH - _CHARACTER / 2 * len(name))
        parts.append(f'<text class="tick" x="{inside:.1f}" y="{bottom + 15}" text-anchor="middle">{name}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    many = len(panel.marks) > MAX_LINES
    kind, top = ("lost short", bottom - 14) if many else ("lost", _TOP)
    parts += [f'<path class="{kind}" d="M{_x(panel, mark):.1f} {top}V{bottom}"/>' for mark in panel.marks]
    if panel.not_finite is not None:
        parts.append(f'<path class="broken" d="M{_x(panel, panel.not_finite):.1f} {_TOP}V{bottom}"/>')
    for level in panel.levels:
        at = float(_y(panel, np.array(level.y), low, high))
        tooltip = escape(f"{level.label}: {significant(level.y, 4)}")
        parts.append(f'<path class="{level.kind}" d="M{_LEFT} {at:.1f}H{right}"><title>{tooltip}</title></path>')
    for curve in panel.curves:
        parts += _curve(curve, panel, _x(panel, curve.x), _y(panel, curve.y, low, high))
    return "".join([*parts, "</svg>"])


def swatch(curve: Curve) -> str:
    """Return the sample of a curve's line for a legend."""
    marker = _marker(curve, 13.0, 6.0)
    return f'<svg class="swatch" viewBox="0 0 26 12"><path class="{style_class(curve)}" d="M1 6H25"/>{marker}</svg>'


def style_class(curve: Curve) -> str:
    """Return the CSS classes of a curve's line."""
    return f"curve {curve.role if curve.role != 'metric' else f'metric{curve.place % 4}'}"


def _description(panel: Panel) -> str:
    last = "; ".join(f"{curve.label} ends at {significant(float(curve.y[-1]), 4)}" for curve in panel.curves)
    levels = "".join(f"; {level.label} at {significant(level.y, 4)}" for level in panel.levels)
    return escape(f"{panel.y_label} over {panel.x_label}: {last}{levels}")


def _x(panel: Panel, values: FloatT) -> FloatT:
    return _LEFT + values / (panel.x_max * 1.02) * (_WIDTH - _RIGHT - _LEFT)


def _y(panel: Panel, values: Floats, low: float, high: float) -> Floats:
    if panel.log:
        values, low, high = np.log(values), float(np.log(low)), float(np.log(high))
    bottom = _HEIGHT - _BOTTOM
    return bottom - (values - low) / (high - low) * (bottom - _TOP)


def _curve(curve: Curve, panel: Panel, x: Floats, y: Floats) -> list[str]:
    points = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    parts = [f'<path class="{style_class(curve)}" d="M{points}"/>'] if len(x) > 1 else []
    if len(x) == 1 or (curve.role != "train" and len(x) <= _MAX_MARKED_POINTS):
        for a, b, at, value in zip(x, y, curve.x, curve.y, strict=True):
            tooltip = f"{curve.label}: {significant(float(value), 4)} at {significant(float(at), 4)} ({panel.x_label})"
            parts.append(_marker(curve, float(a), float(b), tooltip, always=True))
    return parts


def _marker(curve: Curve, x: float, y: float, title: str = "", *, always: bool = False) -> str:
    """Return a marker of the curve's own shape, so that curves also differ without colour."""
    if curve.role == "train" and not always:
        return ""
    kind = style_class(curve).replace("curve", "point")
    inner = f"<title>{escape(title)}</title>" if title else ""
    if curve.role == "metric" and curve.place % 4 == 1:
        return f'<rect class="{kind}" x="{x - 2.8:.1f}" y="{y - 2.8:.1f}" width="5.6" height="5.6">{inner}</rect>'
    if curve.role == "metric" and curve.place % 4 == 2:
        return f'<path class="{kind}" d="M{x:.1f} {y - 3.6:.1f}l3.6 6.4h-7.2z">{inner}</path>'
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.9">{inner}</circle>'


def lane_strip(lane: Lane, window: Window) -> str:
    """Return a lane's segments in a window as SVG or, if there are too many, the share of each kind over time."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(KINDS, lane.shares, strict=True))
    tooltip = escape(f"{lane.actor}, whole run: {shares}")
    parts = [f'<svg viewBox="0 0 {_LANE_WIDTH} {_LANE_HEIGHT}" preserveAspectRatio="none" role="img">']
    parts.append(f"<title>{tooltip}</title>")
    edges, kinds = lane.between(window.begin_s, window.end_s)
    if len(kinds):
        at = (edges - window.begin_s) / (window.end_s - window.begin_s) * _LANE_WIDTH
        parts.append(_boxes("wait", [(float(at[0]), float(at[-1] - at[0]))]))
        if len(kinds) <= _DETAIL_SEGMENTS:
            for kind in (TRANSFER, COMPUTE):
                which = np.flatnonzero(kinds == kind)
                parts.append(_boxes(KINDS[kind], zip(at[which].tolist(), np.diff(at)[which].tolist(), strict=True)))
        else:
            parts += _stacked(lane, window)
    return "".join([*parts, "</svg>"])


def _boxes(kind: str, spans: Iterable[tuple[float, float]]) -> str:
    path = "".join(f"M{x:.2f} 0h{width:.2f}v{_LANE_HEIGHT}h-{width:.2f}z" for x, width in spans)
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def _stacked(lane: Lane, window: Window) -> list[str]:
    bounds = np.linspace(window.begin_s, window.end_s, _BINS + 1)
    heights = lane.binned(bounds) / (bounds[1] - bounds[0]) * _LANE_HEIGHT
    step = _LANE_WIDTH / _BINS
    parts = []
    for kind, tops in (("transfer", heights[COMPUTE] + heights[TRANSFER]), ("compute", heights[COMPUTE])):
        path = "".join(f"V{_LANE_HEIGHT - top:.1f}h{step:g}" for top in tops)
        parts.append(f'<path class="{kind}" d="M0 {_LANE_HEIGHT}{path}V{_LANE_HEIGHT}z"/>')
    return parts
