"""Events on the timeline: what kind each is, in whose row and when, and which of them are drawn as one mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chimera.report.run_files import finite
from chimera.report.timeline import RETURNS, Lane, Window, span
from chimera.report.units import lasted, number

RUN = "run"  # the row of what happened to nobody who has a lane
_NEAR = 0.011  # of a window's width: marks of one kind that are closer would hide each other
_MOST_NAMES = 3


@dataclass(frozen=True)
class Kind:
    """How a kind of event is drawn.

    Attributes
    ----------
    name : its class in the style sheet.
    words : an event whose name has one of them is of this kind.
    glyph, marker : its sign in the page, and in the picture.
    height : where in a lane: -1 at the top, 0 in the middle, 1 at the bottom, so that cause, loss and return do not hide
        each other.
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
    """One event at its place: the row is an actor's, or `RUN`."""

    row: str
    at_s: float
    kind: Kind
    event: Mapping[str, Any]


@dataclass(frozen=True)
class Mark:
    """One sign on the timeline, for one event or for several of a kind that are too near to each other."""

    at_s: float
    kind: Kind
    told: str


def kind_of(event: Mapping[str, Any]) -> Kind:
    """Return the kind of an event, by its name."""
    name = str(event.get("event", ""))
    return next(kind for kind in KINDS if any(word in name for word in kind.words))


def points_of(events: Iterable[Mapping[str, Any]], lanes: Sequence[Lane]) -> list[Point]:
    """Return where the events stand on the timeline, oldest first; those without a time are left out.

    Who was lost for good was so when its lane ends: the event is noted later.
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
    """Return when who was lost."""
    return [(point.at_s, str(point.event.get("actor", ""))) for point in points if point.kind is LOST]


def legend(points: Iterable[Point]) -> list[tuple[Kind, str]]:
    """Return the kinds that there are, each with the names of its events."""
    names: dict[Kind, Counter[str]] = {}
    for point in points:
        names.setdefault(point.kind, Counter())[str(point.event.get("event", ""))] += 1
    return [(kind, _listed(list(names[kind]), ", ")) for kind in KINDS if kind in names]


def marks_in(window: Window, points: Iterable[Point], *, virtual: bool = False) -> dict[str, list[Mark]]:
    """Return the marks to draw in a window, by row; in each row those that tell more come last, and so lie on top."""
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
        where = f"round {number(event.get('round', ''))}, {lasted(first.at_s, virtual=virtual)}"
        named = ", ".join(part for part in (str(event.get("event", "")), actor, where) if part)
        return Mark(first.at_s, first.kind, f"{named}: {event.get('detail', '')}".rstrip(": "))
    names = Counter(str(point.event.get("event", "")) for point in group)
    counted = _listed([f"{name}, {count:,} times" for name, count in names.items()], "; ")
    told = f"{counted}, from {lasted(first.at_s, virtual=virtual)} to {lasted(last.at_s, virtual=virtual)}"
    return Mark((first.at_s + last.at_s) / 2, first.kind, told)


def _listed(names: Sequence[str], between: str) -> str:
    return between.join([*names[:_MOST_NAMES], *(["…"] if len(names) > _MOST_NAMES else [])])


def told_in_table(events: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most ``most`` events, oldest first; where there are more, the first few of each name and actor."""
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
