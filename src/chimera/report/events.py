"""Events on the timeline: their kinds, rows and times, and the grouping of close events into marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chimera.report.run_files import finite
from chimera.report.timeline import RETURNS, Lane, Window, span
from chimera.report.units import format_duration, number

RUN = "run"  # the row of events whose actor has no lane
_NEAR = 0.011  # fraction of a window's width: closer marks of one kind would overlap
_MAX_NAMES = 3


@dataclass(frozen=True)
class Kind:
    """The symbol and the place of a kind of event.

    Attributes
    ----------
    name : CSS class.
    words : an event is of this kind if its name contains one of these words.
    glyph, marker : its symbol in the HTML page, and in plots.
    height : vertical position in a lane: -1 top, 0 middle, 1 bottom, so that fault, loss and recovery do not overlap.
    """

    name: str
    words: tuple[str, ...]
    glyph: str
    marker: str
    height: int = 0


KINDS = (
    Kind("lost", ("lost", "dropped"), "✕", "X"),
    Kind("rejected", ("rejected",), "◆", "D"),
    Kind("back", (*RETURNS, "went back", "rebuilt"), "▲", "^", 1),
    Kind("fault", ("fault", "attack"), "▼", "v", -1),
    Kind("other", ("",), "●", "o"),
)
LOST = KINDS[0]


@dataclass(frozen=True)
class Point:
    """One event with its position: its row is the name of an actor, or `RUN`."""

    row: str
    at_s: float
    kind: Kind
    event: Mapping[str, Any]


@dataclass(frozen=True)
class Mark:
    """One symbol on the timeline, for one event or for several close events of a kind."""

    at_s: float
    kind: Kind
    text: str


def kind_of(event: Mapping[str, Any]) -> Kind:
    """Return the kind of an event, by its name."""
    name = str(event.get("event", ""))
    return next(kind for kind in KINDS if any(word in name for word in kind.words))


def points_of(events: Iterable[Mapping[str, Any]], lanes: Sequence[Lane]) -> list[Point]:
    """Return the positions of events on the timeline, oldest first, without events that have no time.

    A permanent loss is placed at the end of the actor's lane, since the event is recorded later.
    """
    if not lanes:
        return []
    begin_s, end_s = span(lanes)
    known = {lane.actor: lane for lane in lanes}
    points = []
    for event in events:
        actor, at_s = str(event.get("actor", "")), finite(event.get("seconds"))
        if np.isfinite(at_s):
            row = actor if actor in known else RUN
            points.append(Point(row, min(max(at_s, begin_s), end_s), kind_of(event), event))
    last = {point.row: i for i, point in enumerate(points) if point.kind is LOST}
    for row, i in last.items():
        lost_s = known[row].lost_s if row in known else None
        if lost_s is not None:
            points[i] = Point(row, lost_s, LOST, points[i].event)
    return sorted(points, key=lambda point: point.at_s)


def losses(points: Iterable[Point]) -> list[tuple[float, str]]:
    """Return the time in seconds and the actor of each loss."""
    return [(point.at_s, str(point.event.get("actor", ""))) for point in points if point.kind is LOST]


def legend(points: Iterable[Point]) -> list[tuple[Kind, str]]:
    """Return the kinds of these events, each with the names of its events."""
    names: dict[Kind, Counter[str]] = {}
    for point in points:
        names.setdefault(point.kind, Counter())[str(point.event.get("event", ""))] += 1
    return [(kind, _listed(list(names[kind]), ", ")) for kind in KINDS if kind in names]


def marks_in(window: Window, points: Iterable[Point], *, virtual: bool = False) -> dict[str, list[Mark]]:
    """Return the marks to draw in a window, by row; in each row the most important ones are last, and so on top."""
    begin_s, end_s = window.begin_s, window.end_s
    groups: dict[str, list[list[Point]]] = {}
    latest: dict[tuple[str, Kind], list[Point]] = {}
    for point in points:
        if begin_s <= point.at_s <= end_s:
            key = point.row, point.kind
            if key in latest and point.at_s - latest[key][0].at_s < _NEAR * (end_s - begin_s):
                latest[key].append(point)
            else:
                latest[key] = [point]
                groups.setdefault(point.row, []).append(latest[key])
    order = {kind: -place for place, kind in enumerate(KINDS)}
    return {
        row: [_mark(group, virtual=virtual) for group in sorted(found, key=lambda group: order[group[0].kind])]
        for row, found in groups.items()
    }


def _mark(group: Sequence[Point], *, virtual: bool) -> Mark:
    first, last = group[0], group[-1]
    if len(group) == 1:
        event = first.event
        actor = str(event.get("actor", "")) if first.row == RUN else ""
        where = f"round {number(event.get('round', ''))}, {format_duration(first.at_s, virtual=virtual)}"
        named = ", ".join(part for part in (str(event.get("event", "")), actor, where) if part)
        return Mark(first.at_s, first.kind, f"{named}: {event.get('detail', '')}".rstrip(": "))
    names = Counter(str(point.event.get("event", "")) for point in group)
    counted = _listed([f"{name}, {count:,} times" for name, count in names.items()], "; ")
    text = f"{counted}, from {format_duration(first.at_s, virtual=virtual)} to {format_duration(last.at_s, virtual=virtual)}"
    return Mark((first.at_s + last.at_s) / 2, first.kind, text)


def _listed(names: Sequence[str], between: str) -> str:
    return between.join([*names[:_MAX_NAMES], *(["…"] if len(names) > _MAX_NAMES else [])])


def select_events(events: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most ``most`` events, oldest first; if there are more, the first few of each name and actor."""
    if len(events) <= most:
        return list(events)
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for event in events:
        key = str(event.get("event", "")), str(event.get("actor", ""))
        seen[key] += 1
        if seen[key] <= max(most // 10, 1):
            kept.append(event)
    return kept[:most]
