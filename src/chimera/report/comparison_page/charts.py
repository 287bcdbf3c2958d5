"""Charts of a comparison as SVG: a line or a point for each cell, distinguished by colour, shape, dashes and number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from chimera.report.curves import Floats
from chimera.report.units import linear_ticks, log_tick_labels, log_ticks, significant, tick_labels

COLOURS = 6
MAX_LINES = 12
_WIDTH, _HEIGHT = 560, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 22, 14, 46
_LOG_FROM_RATIO = 20.0
_MAX_MARKED_POINTS = 40
_LABEL_PX = 12.0  # approximate height of a number, and width of two digits
_PLACES = ((0, -11), (11, -7), (11, 8), (0, 14), (-11, -7), (-11, 8), (20, 0), (-20, 0), (0, -23), (0, 26), (20, -16))


@dataclass(frozen=True, eq=False)
class Series:
    """The line or point of one cell.

    Attributes
    ----------
    place : index from 0; decides colour, shape and dashes.
    name : its number or letter, drawn next to it.
    label : its tooltip.
    x, y : shape (n,), finite, n at least 1.
    samples : x and y of single values, if the line goes through medians of several values.
    band : lower and upper y, each of shape (n,), if the line is a mean.
    """

    place: int
    name: str
    label: str
    x: Floats
    y: Floats
    samples: tuple[Floats, Floats] | None = None
    band: tuple[Floats, Floats] | None = None


@dataclass(frozen=True, eq=False)
class Chart:
    """One chart.

    Attributes
    ----------
    points : whether each series is a single point, without lines.
    front : x and y of the Pareto-optimal points, by ascending x; drawn as steps.
    ideal : x and y of the ends of a dashed reference line.
    log_x, log_y : whether the axes are logarithmic.
    x_ticks : ticks of the x axis; by default at round values.
    y_most : upper bound of y.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    points: bool = False
    front: tuple[Floats, Floats] | None = None
    ideal: tuple[Floats, Floats] | None = None
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[float] = ()
    y_most: float = np.inf


def is_wide(values: Iterable[float]) -> bool:
    """Return whether the range of the positive values is so wide that it needs a logarithmic axis."""
    found = [value for value in values if value > 0]
    return bool(found) and max(found) / min(found) > _LOG_FROM_RATIO


def draw(chart: Chart) -> str:
    """Return the chart as SVG of 560 by 330 units, which scales to its container."""
    return _Drawing(chart).text()


def swatch(place: int) -> str:
    """Return the sample of a series for a legend."""
    line = f'<path class="{_class("series", place)}" d="M1 6H29"/>'
    return f'<svg class="swatch wide" viewBox="0 0 30 12">{line}{_marker(place, 15.0, 6.0)}</svg>'


class _Axis:
    """The mapping of values to positions on an axis."""

    def __init__(self, values: Floats, log: bool, begin: float, end: float) -> None:
        self.log = log and bool((values > 0).all())
        low, high = float(values.min()), float(values.max())
        if self.log:
            margin = max((high / low) ** 0.06, 1.06)
            self.low, self.high = low / margin, high * margin
        else:
            margin = 0.06 * (high - low) or 0.15 * abs(high) or 1.0
            self.low, self.high = (0.0 if 0 <= low < 0.35 * high else low - margin), high + margin
        self._begin, self._end = begin, end

    def at(self, values: Floats) -> Floats:
        low, high = self.low, self.high
        if self.log:
            values, low, high = np.log(values), float(np.log(low)), float(np.log(high))
        placed: Floats = self._begin + (values - low) / (high - low) * (self._end - self._begin)
        return placed

    def ticks(self, most: int) -> list[tuple[float, str]]:
        if self.log:
            ticks = log_ticks(self.low, self.high, most)
            if len(ticks) > 1:
                return list(zip(ticks, log_tick_labels(ticks), strict=True))
        ticks = linear_ticks(self.low, self.high, most)
        return list(zip(ticks, tick_labels(ticks), strict=True))


class _Drawing:
    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        pairs = [(series.x, series.y) for series in chart.series]
        pairs += [series.samples for series in chart.series if series.samples is not None]
        pairs += [(series.x, edge) for series in chart.series for edge in self._edges(series)]
        pairs += [chart.ideal] if chart.ideal is not None else []
        xs, ys = (np.concatenate(values) for values in zip(*pairs, strict=True))
        self._x = _Axis(xs, chart.log_x, _LEFT, _WIDTH - _RIGHT)
        self._y = _Axis(ys, chart.log_y, _HEIGHT - _BOTTOM, _TOP)
        self._y.high = min(self._y.high, chart.y_most)
        self._parts: list[str] = []

    def text(self) -> str:
        chart = self._chart
        tooltip = f"{chart.y_label} over {chart.x_label}: " + "; ".join(
            f"{series.label} {significant(float(series.y[-1]), 4)} at {significant(float(series.x[-1]), 4)}"
            for series in chart.series
        )
        self._axes()
        if chart.front is not None:
            self._front(*chart.front)
        if chart.ideal is not None:
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(*self._placed(chart.ideal), strict=True))
            self._parts.append(f'<path class="ideal" d="M{path}"><title>ideal</title></path>')
        for series in chart.series:
            self._band(series)
        for series in chart.series:
            self._samples(series)
            self._line(series)
        self._names()
        opening = f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(tooltip)}">'
        return "".join([opening, *self._parts, "</svg>"])

    def _axes(self) -> None:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for tick, name in self._y.ticks(7):
            at = float(self._y.at(np.array(tick)))
            self._parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
            self._parts.append(f'<text class="tick" x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
        own = [(tick, significant(tick, 3)) for tick in self._chart.x_ticks]
        for tick, name in own or self._x.ticks(7):
            at = float(self._x.at(np.array(tick)))
            self._parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
            self._parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{name}</text>')
        self._parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
        log = " (log scale)" if self._x.log else ""
        middle = (_LEFT + right) / 2
        label = escape(self._chart.x_label + log)
        self._parts.append(f'<text class="label" x="{middle}" y="{_HEIGHT - 7}" text-anchor="middle">{label}</text>')

    def _front(self, x: Floats, y: Floats) -> None:
        """Draw the Pareto front as steps: each point is the best until the x of the next one."""
        at_x, at_y = self._x.at(x), self._y.at(y)
        steps = "".join(f"H{a:.1f}V{b:.1f}" for a, b in zip(at_x[1:], at_y[1:], strict=True))
        self._parts.append(f'<path class="front" d="M{at_x[0]:.1f} {at_y[0]:.1f}{steps}H{_WIDTH - _RIGHT}"/>')

    def _placed(self, points: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        return self._x.at(points[0]), self._y.at(points[1])

    def _edges(self, series: Series) -> list[Floats]:
        """Return the edges of a band, within the range of the axis: a logarithm needs values above zero."""
        if series.band is None:
            return []
        least = series.y / 10 if self._chart.log_y else np.full(len(series.y), -np.inf)
        return [np.clip(edge, least, self._chart.y_most) for edge in series.band]

    def _band(self, series: Series) -> None:
        edges = self._edges(series)
        if len(series.x) > 1 and edges:
            low, high = (list(zip(*self._placed((series.x, edge)), strict=True)) for edge in edges)
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b in [*high, *low[::-1]])
            self._parts.append(f'<path class="{_class("band", series.place)}" d="M{path}Z"/>')

    def _samples(self, series: Series) -> None:
        if series.samples is None:
            return
        for a, b, value in zip(*self._placed(series.samples), series.samples[1], strict=True):
            tooltip = escape(f"{series.label}, one seed: {significant(float(value), 4)}")
            dot = f'<circle class="{_class("dot hollow", series.place)}" cx="{a:.1f}" cy="{b:.1f}" r="3.4">'
            self._parts.append(f"{dot}<title>{tooltip}</title></circle>")

    def _line(self, series: Series) -> None:
        x, y = self._x.at(series.x), self._y.at(series.y)
        if len(x) > 1:
            path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
            self._parts.append(f'<path class="{_class("series", series.place)}" d="{path}"/>')
            self._parts.append(f'<path class="hit" d="{path}"><title>{escape(series.label)}</title></path>')
        if len(x) > _MAX_MARKED_POINTS:
            return
        dominated = self._chart.front is not None and not _is_on(self._chart.front, series)
        for a, b, at, value in zip(x, y, series.x, series.y, strict=True):
            tooltip = (
                f"{series.label}: {significant(float(value), 4)} at {significant(float(at), 4)} ({self._chart.x_label})"
            )
            self._parts.append(
                _marker(series.place, float(a), float(b), tooltip, hollow=dominated, big=self._chart.points)
            )

    def _names(self) -> None:
        """Draw the name of each series next to its last point, in free space; one label for points that coincide."""
        ends: list[tuple[float, float, list[str]]] = []
        for series in self._chart.series:
            x, y = float(self._x.at(series.x[-1:])[0]), float(self._y.at(series.y[-1:])[0])
            near = next((end for end in ends if abs(end[0] - x) + abs(end[1] - y) < 3), None)
            if near is None:
                ends.append((x, y, [series.name]))
            else:
                near[2].append(series.name)
        taken = [(x, y, 4.0) for x, y, _ in ends]
        for x, y, names in ends:
            name = ", ".join(names)
            half = max(_LABEL_PX / 2, 3.4 * len(name))
            a, b = self._free(x, y, half, taken)
            taken.append((a, b, half))
            self._parts.append(
                f'<text class="name" x="{a:.1f}" y="{b + 4:.1f}" text-anchor="middle">{escape(name)}</text>'
            )

    def _free(
        self, x: float, y: float, half: float, taken: Sequence[tuple[float, float, float]]
    ) -> tuple[float, float]:
        def overlap(place: tuple[float, float]) -> float:
            a, b = place
            outside = max(a + half - _WIDTH, 0) + max(_LEFT - a + half, 0) + max(b + 6 - (_HEIGHT - _BOTTOM), 0)
            return outside + sum(
                max(half + width - abs(a - c), 0) * max(_LABEL_PX - abs(b - d), 0) for c, d, width in taken
            )

        places = [(x + dx + (half - 6 if dx > 0 else 6 - half if dx < 0 else 0), y + dy) for dx, dy in _PLACES]
        return min(places, key=overlap)


def _is_on(front: tuple[Floats, Floats], series: Series) -> bool:
    return bool(((front[0] == series.x[-1]) & (front[1] == series.y[-1])).any())


def _class(kind: str, place: int) -> str:
    return f"{kind} c{place % COLOURS} d{place // COLOURS % 3}"


def _marker(place: int, x: float, y: float, tooltip: str = "", *, hollow: bool = False, big: bool = False) -> str:
    r = 5.2 if big else 3.1
    shapes = (
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        f"M{x - r * 0.9:.1f} {y - r * 0.9:.1f}h{r * 1.8:.1f}v{r * 1.8:.1f}h{-r * 1.8:.1f}z",
        f"M{x:.1f} {y - r * 1.2:.1f}l{r * 1.15:.1f} {r * 2:.1f}h{-r * 2.3:.1f}z",
        f"M{x:.1f} {y - r * 1.3:.1f}l{r * 1.3:.1f} {r * 1.3:.1f}l{-r * 1.3:.1f} {r * 1.3:.1f}l{-r * 1.3:.1f} {-r * 1.3:.1f}z",
        f"M{x:.1f} {y + r * 1.2:.1f}l{r * 1.15:.1f} {-r * 2:.1f}h{-r * 2.3:.1f}z",
        f"M{x - r:.1f} {y - r * 0.45:.1f}h{2 * r:.1f}v{r * 0.9:.1f}h{-2 * r:.1f}z",
    )
    inner = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    kind = "dot hollow" if hollow else "dot"
    return f'<path class="{_class(kind, place)}" d="{shapes[place % COLOURS]}">{inner}</path>'
