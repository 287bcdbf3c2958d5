"""Lanes of the timeline: how each actor spent its time, computed from the trace.

A lane has a list of edges and the kind of time between consecutive edges, so that segments are adjacent and never overlap.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.trace import TraceRow

COMPUTE, TRANSFER, WAIT = range(3)
KINDS = ("compute", "transfer", "wait")
RETURNS = ("respawned", "joined", "restored")  # an event whose name contains one of these means that its actor is back

MAX_NUMBER = 1e300
"""Upper bound of numbers from a run's files, so that their sums and differences are finite."""

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lane:
    """The time of one actor, divided into segments.

    Attributes
    ----------
    actor : name of the actor.
    edges : seconds, shape (n + 1,), non-decreasing: segment i is between edges i and i + 1.
    kinds : kind of each segment, shape (n,): COMPUTE, TRANSFER or WAIT.
    starts, ends : start and end times of its calls in seconds, shape (calls,).
    lost_s : time of its death in seconds, if it is dead.
    """

    actor: str
    edges: Floats
    kinds: NDArray[np.uint8]
    starts: Floats
    ends: Floats
    lost_s: float | None = None

    @property
    def shares(self) -> Floats:
        """The fraction of the lane's time in each of KINDS, shape (3,); sums to 1."""
        seconds = np.bincount(self.kinds, weights=np.diff(self.edges), minlength=3)
        total = float(seconds.sum())
        return seconds / total if total > 0 else np.array([1.0, 0.0, 0.0])

    @property
    def is_worker(self) -> bool:
        """Whether the actor is a worker, by its name."""
        return self.actor.startswith("worker")

    def between(self, begin_s: float, end_s: float) -> tuple[Floats, NDArray[np.uint8]]:
        """Return the edges and kinds of the part of the lane in a window; it may have no segments."""
        low, high = max(begin_s, float(self.edges[0])), min(end_s, float(self.edges[-1]))
        if high <= low:
            return np.empty(1), np.empty(0, np.uint8)
        first = int(np.searchsorted(self.edges, low, "right"))
        last = int(np.searchsorted(self.edges, high, "left"))
        return np.concatenate([[low], self.edges[first:last], [high]]), self.kinds[first - 1 : last]

    def binned(self, bounds: Floats) -> Floats:
        """Return the exact seconds of each kind between consecutive ``bounds``, shape (3, bins)."""
        lengths = np.diff(self.edges)
        sums = [np.concatenate([[0.0], np.cumsum(lengths * (self.kinds == kind))]) for kind in range(3)]
        return np.array([np.diff(np.interp(bounds, self.edges, total)) for total in sums])


def lanes_of(rows: Iterable[TraceRow], events: Sequence[Mapping[str, Any]] = ()) -> list[Lane]:
    """Return lanes from trace rows, which are oldest first for each actor: workers by number, then servers, then others."""
    columns: dict[str, array[float]] = {}
    for row, start, end in on_one_clock(rows):
        if row.actor not in columns:
            columns[row.actor] = array("d")
        columns[row.actor].extend((start, end, row.transfer_s, row.wait_s))
    lanes = []
    for actor in sorted(columns, key=lane_order):
        calls = np.frombuffer(columns[actor]).reshape(-1, 4)
        edges, kinds = segments(calls)
        lanes.append(Lane(actor, edges, kinds, calls[:, 0], calls[:, 1]))
    return mark_losses(lanes, events)


def on_one_clock(rows: Iterable[TraceRow]) -> Iterator[tuple[TraceRow, float, float]]:
    """Yield trace rows with their start and end on one clock. Rows with times beyond `MAX_NUMBER` are skipped.

    If a clock restarts, since the run was resumed, its rows are shifted behind the earlier ones.
    """
    latest: dict[str, float] = {}
    shift = horizon = 0.0
    for row in rows:
        if not abs(row.start_s) + abs(row.end_s) + abs(row.transfer_s) + abs(row.wait_s) < MAX_NUMBER:
            continue
        start, end = row.start_s + shift, row.end_s + shift
        if start < latest.get(row.actor, start) - 1e-6:
            shift = horizon
            start, end = row.start_s + shift, row.end_s + shift
        latest[row.actor] = start
        horizon = max(horizon, end)
        yield row, start, end


def lane_order(actor: str) -> tuple[int, str, int, str]:
    """Return the key that sorts lanes: workers, servers, others, each by number."""
    match = re.fullmatch(r"(.*?)\s*(\d{1,18})", actor)
    kind, index = (match[1], int(match[2])) if match else (actor, -1)
    return {"worker": 0, "server": 1}.get(kind.split(" ")[0], 2), kind, index, actor


def segments(calls: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """Divide an actor's time into segments.

    - The transfer of a call's arguments is placed just before its start, as far as the actor was idle then.
    - The rest of its transfer happened inside the call and is placed after its computation.
    - Waiting for a group is placed at the end of the call.
    - The rest of the gap between two calls is waiting.
    - Where rows overlap (clocks of two machines), the earlier row takes precedence.

    Parameters
    ----------
    calls : shape (n, 4), n at least 1: start, end, transfer and wait of each call in seconds.

    Returns
    -------
    edges, kinds : segments from the first call's transfer to the last call's end, without empty ones.
    """
    calls = calls[np.argsort(calls[:, 0], kind="stable")]
    transfer, wait = np.maximum(calls[:, 2], 0), np.maximum(calls[:, 3], 0)
    reached = np.maximum.accumulate(np.maximum(calls[:, 0], calls[:, 1]))
    first = calls[0, 0] - min(transfer[0], max(calls[0, 0], 0.0))
    previous = np.concatenate([[first], reached[:-1]])
    start = np.maximum(calls[:, 0], previous)
    end = np.maximum(reached, start)
    before = np.minimum(transfer, start - previous)
    waiting = np.minimum(wait, end - start)
    inside = np.minimum(transfer - before, end - start - waiting)
    computed = np.maximum(end - waiting - inside, start)
    edges = np.stack([np.maximum(start - before, previous), start, computed, np.maximum(end - waiting, computed), end])
    edges = np.maximum.accumulate(np.concatenate([[first], edges.T.ravel()]))
    kinds = np.tile(np.array([WAIT, TRANSFER, COMPUTE, TRANSFER, WAIT], np.uint8), len(calls))
    # Rounding errors of sums and differences would appear as segments of less than a picosecond.
    kept = np.diff(edges) > np.maximum(1e-12, np.abs(edges[1:]) * 1e-14)
    if not kept.any():
        return np.array([edges[0], edges[-1]]), np.array([COMPUTE], np.uint8)
    inner = edges[1:][kept]
    inner[-1] = edges[-1]
    return np.concatenate([[edges[0]], inner]), kinds[kept]


def mark_losses(lanes: Sequence[Lane], events: Sequence[Mapping[str, Any]]) -> list[Lane]:
    """Return the lanes with the losses that ``events`` report.

    An actor that did not return died at the end of its lane: the event is recorded later, and maybe by another clock.
    """
    lost: set[str] = set()
    for event in events:
        actor = str(event.get("actor", ""))
        name = str(event.get("event", ""))
        if "lost" in name:
            lost.add(actor)
        elif any(word in name for word in RETURNS):
            lost.discard(actor)
    return [replace(lane, lost_s=float(lane.edges[-1])) if lane.actor in lost else lane for lane in lanes]


def selection(lanes: Sequence[Lane], most: int, marked: Collection[str] = ()) -> list[Lane]:
    """Return at most ``most`` lanes to draw: lost, ``marked`` and server lanes (up to half), and evenly spaced workers."""
    if len(lanes) <= most:
        return list(lanes)
    first = sorted(range(len(lanes)), key=lambda i: (lanes[i].lost_s is None, lanes[i].actor not in marked, i))
    chosen = [i for i in first if lanes[i].lost_s is not None or lanes[i].actor in marked][: most // 4]
    chosen += [i for i, lane in enumerate(lanes) if not lane.is_worker and i not in chosen][: most // 4]
    rest = [i for i in range(len(lanes)) if i not in chosen]
    spread = np.linspace(0, len(rest) - 1, most - len(chosen)).round().astype(int)
    return [lanes[i] for i in sorted({*chosen, *(rest[j] for j in spread)})]


def span(lanes: Sequence[Lane]) -> tuple[float, float]:
    """Return the start of the first lane and the end of the last one, in seconds."""
    begin_s, end_s = min(float(lane.edges[0]) for lane in lanes), max(float(lane.edges[-1]) for lane in lanes)
    return begin_s, max(end_s, begin_s + 1e-9)


def excerpt(lanes: Sequence[Lane], calls: int = 12) -> tuple[float, float] | None:
    """Return the window of the first ``calls`` calls of a typical worker after warm-up; None if the run is short."""
    workers = sorted((lane for lane in lanes if lane.is_worker), key=lambda lane: len(lane.starts)) or list(lanes)
    typical = workers[len(workers) // 2]
    count = len(typical.starts)
    if count <= 2 * calls:
        return None
    skipped = min(calls, count // 4)
    begin_s, end_s = float(typical.ends[skipped - 1]), float(typical.ends[skipped + calls - 1])
    return (begin_s, end_s) if end_s > begin_s else None


@dataclass(frozen=True)
class Window:
    """A part of the run to draw, in seconds of the trace."""

    title: str
    begin_s: float
    end_s: float


def windows(lanes: Sequence[Lane], losses: Sequence[tuple[float, str]] = ()) -> list[Window]:
    """Return the windows to draw: some rounds after warm-up, the rounds around the first loss, and the whole run.

    Parameters
    ----------
    losses : time in seconds and actor of each loss, also of actors that returned.
    """
    begin_s, end_s = span(lanes)
    whole = Window("The whole run", begin_s, end_s)
    detail = excerpt(lanes)
    if detail is None:
        return [whole]
    found = [Window("Some rounds after warm-up", *detail)]
    lost = [*losses, *((lane.lost_s, lane.actor) for lane in lanes if lane.lost_s is not None)]
    if lost:
        width_s = detail[1] - detail[0]
        at_s, actor = min(lost)
        low = max(begin_s, min(at_s - width_s / 2, end_s - width_s))
        found.append(Window(f"Around the loss of {actor}", low, min(end_s, low + width_s)))
    return [*found, whole]
