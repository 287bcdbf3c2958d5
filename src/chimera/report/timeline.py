"""Lanes of the timeline: what each actor did with its time, from the rows of the trace.

A lane is one list of edges and the kind of time between each two of them, so its segments touch and never overlap.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.trace import TraceRow

COMPUTE, TRANSFER, WAIT = range(3)
KINDS = ("compute", "transfer", "wait")
RETURNS = ("respawned", "joined", "restored")  # an event whose name has one of these brings its actor back

LARGEST = 1e300
"""What numbers of a run's files are below, so that sums and differences of them are finite."""

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lane:
    """One actor's time.

    Attributes
    ----------
    actor : its name.
    edges : seconds, shape (n + 1,), never falling: segment i lies between edges i and i + 1.
    kinds : shape (n,): COMPUTE, TRANSFER or WAIT.
    starts, ends : when its calls began and ended, shape (calls,).
    lost_s : when it died, if it did.
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
        """Whether its name says that it is a worker."""
        return self.actor.startswith("worker")

    def between(self, begin_s: float, end_s: float) -> tuple[Floats, NDArray[np.uint8]]:
        """Return the edges and kinds of the part of the lane that lies in a window; maybe no segment at all."""
        low, high = max(begin_s, float(self.edges[0])), min(end_s, float(self.edges[-1]))
        if high <= low:
            return np.empty(1), np.empty(0, np.uint8)
        first = int(np.searchsorted(self.edges, low, "right"))
        last = int(np.searchsorted(self.edges, high, "left"))
        return np.concatenate([[low], self.edges[first:last], [high]]), self.kinds[first - 1 : last]

    def binned(self, bounds: Floats) -> Floats:
        """Return the seconds of each kind between each two ``bounds``, shape (3, bins): exact, whatever the bins."""
        lengths = np.diff(self.edges)
        sums = [np.concatenate([[0.0], np.cumsum(lengths * (self.kinds == kind))]) for kind in range(3)]
        return np.array([np.diff(np.interp(bounds, self.edges, total)) for total in sums])


def lanes_of(rows: Iterable[TraceRow], events: Sequence[Mapping[str, Any]] = ()) -> list[Lane]:
    """Turn trace rows, oldest first per actor, into lanes: workers by number, then servers, then all others.

    A clock that begins again (the run was resumed) is put behind what came before. Rows of times beyond `LARGEST` are left out.
    """
    columns: dict[str, array[float]] = {}
    latest: dict[str, float] = {}
    shift = horizon = 0.0
    for row in rows:
        if not abs(row.start_s) + abs(row.end_s) + abs(row.transfer_s) + abs(row.wait_s) < LARGEST:
            continue
        actor, start, end = row.actor, row.start_s + shift, row.end_s + shift
        if start < latest.get(actor, start) - 1e-6:
            shift = horizon
            start, end = row.start_s + shift, row.end_s + shift
        latest[actor] = start
        horizon = max(horizon, end)
        if actor not in columns:
            columns[actor] = array("d")
        columns[actor].extend((start, end, row.transfer_s, row.wait_s))
    lanes = []
    for actor in sorted(columns, key=lane_order):
        calls = np.frombuffer(columns[actor]).reshape(-1, 4)
        edges, kinds = segments(calls)
        lanes.append(Lane(actor, edges, kinds, calls[:, 0], calls[:, 1]))
    return mark_losses(lanes, events)


def lane_order(actor: str) -> tuple[int, str, int, str]:
    """Return the key that sorts lanes: workers, servers, others, each by number."""
    match = re.fullmatch(r"(.*?)\s*(\d{1,18})", actor)
    kind, index = (match[1], int(match[2])) if match else (actor, -1)
    return {"worker": 0, "server": 1}.get(kind.split(" ")[0], 2), kind, index, actor


def segments(calls: Floats) -> tuple[Floats, NDArray[np.uint8]]:
    """Cut an actor's time into segments.

    A call's arguments travel just before it starts, as far as the actor was idle; what the row counts as transfer beyond
    that happened inside the call and is put behind its computing, and so is waiting for a group, at the very end. The rest
    of the gap between two calls is waiting. Where rows overlap (clocks of two machines), the earlier one wins.

    Parameters
    ----------
    calls : shape (n, 4), n at least 1: start, end, transfer and wait of each call in seconds.

    Returns
    -------
    edges, kinds : from the first call's transfer to the last call's end, without empty segments.
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
    # Sums and differences of floats leave crumbs where nothing was; a picosecond is no segment.
    kept = np.diff(edges) > np.maximum(1e-12, np.abs(edges[1:]) * 1e-14)
    if not kept.any():
        return np.array([edges[0], edges[-1]]), np.array([COMPUTE], np.uint8)
    inner = edges[1:][kept]
    inner[-1] = edges[-1]
    return np.concatenate([[edges[0]], inner]), kinds[kept]


def mark_losses(lanes: Sequence[Lane], events: Sequence[Mapping[str, Any]]) -> list[Lane]:
    """Return the lanes with the deaths that ``events`` tell of.

    An actor that was not heard of again died when its lane ends: the event is noted later, and maybe by another clock.
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
    """Return ``most`` lanes to draw: the dead, the ``marked`` and the servers (up to half), and workers spread evenly."""
    if len(lanes) <= most:
        return list(lanes)
    first = sorted(range(len(lanes)), key=lambda i: (lanes[i].lost_s is None, lanes[i].actor not in marked, i))
    chosen = [i for i in first if lanes[i].lost_s is not None or lanes[i].actor in marked][: most // 4]
    chosen += [i for i, lane in enumerate(lanes) if not lane.is_worker and i not in chosen][: most // 4]
    rest = [i for i in range(len(lanes)) if i not in chosen]
    spread = np.linspace(0, len(rest) - 1, most - len(chosen)).round().astype(int)
    return [lanes[i] for i in sorted({*chosen, *(rest[j] for j in spread)})]


def span(lanes: Sequence[Lane]) -> tuple[float, float]:
    """Return when the first lane begins and the last one ends, in seconds."""
    begin_s, end_s = min(float(lane.edges[0]) for lane in lanes), max(float(lane.edges[-1]) for lane in lanes)
    return begin_s, max(end_s, begin_s + 1e-9)


def excerpt(lanes: Sequence[Lane], calls: int = 12) -> tuple[float, float] | None:
    """Return the window of the first ``calls`` calls of a typical worker after warm-up; nothing if the whole run is short."""
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
    """Return what to draw: some rounds after warm-up and those around the first loss, both in detail, and the whole run.

    Parameters
    ----------
    losses : when who was lost, also of those who came back.
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
