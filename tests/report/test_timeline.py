from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.trace import TraceRow
from chimera.report.timeline import (
    COMPUTE,
    TRANSFER,
    WAIT,
    excerpt,
    lane_order,
    lanes_of,
    segments,
    selection,
    span,
    windows,
)

SECONDS = st.floats(0, 100, allow_nan=False)


@st.composite
def call_rows(draw):
    """Draw rows of one actor as an engine writes them: one call at a time, in order, with correct durations."""
    rows, now = [], draw(SECONDS)
    for _ in range(draw(st.integers(1, 12))):
        gap, travelling = draw(SECONDS), draw(st.floats(0, 1))
        parts = [draw(SECONDS) for _ in range(3)]  # computing, moving data inside the call, waiting for the group
        start = now + gap
        end = start + sum(parts)
        rows.append(
            TraceRow("worker 0", 0, "step", start, end, transfer_s=gap * travelling + parts[1], wait_s=parts[2])
        )
        now = end
    return rows


@given(call_rows())
def test_segments_are_adjacent_and_cover_the_lane(rows):
    (lane,) = lanes_of(rows)
    assert (np.diff(lane.edges) >= 0).all()
    assert len(lane.edges) == len(lane.kinds) + 1
    assert max(0.0, rows[0].start_s - rows[0].transfer_s) == pytest.approx(lane.edges[0], abs=1e-9)
    assert lane.edges[-1] == rows[-1].end_s
    assert lane.shares.sum() == pytest.approx(1)


@given(call_rows())
def test_waiting_inside_calls_and_all_transfer_are_accounted_for(rows):
    """Time that is not computing is transfer or waiting in the rows, or a gap between two calls."""
    (lane,) = lanes_of(rows)
    seconds = lane.shares * (lane.edges[-1] - lane.edges[0])
    gaps = lane.edges[-1] - lane.edges[0] - sum(row.end_s - row.start_s for row in rows)
    waited = sum(row.wait_s for row in rows)
    assert seconds[WAIT] <= gaps + waited + 1e-6
    assert seconds[WAIT] >= waited - 1e-6
    computed = sum(row.end_s - row.start_s - row.wait_s for row in rows)
    assert seconds[COMPUTE] <= computed + 1e-6


@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 4), min_size=1, max_size=20))
def test_even_invalid_rows_give_a_lane_without_overlap(rows):
    edges, kinds = segments(np.array(rows, dtype=np.float64))
    assert (np.diff(edges) >= 0).all()
    assert len(edges) == len(kinds) + 1


def test_a_call_is_drawn_as_transfer_compute_and_waiting_at_its_end():
    rows = [
        TraceRow("worker 0", 0, "gradient", 1.0, 2.0, transfer_s=0.25),
        TraceRow("worker 0", 0, "gradient", 3.0, 5.0, transfer_s=0.5, wait_s=0.75),
    ]
    (lane,) = lanes_of(rows)
    assert lane.edges.tolist() == [0.75, 1.0, 2.0, 2.5, 3.0, 4.25, 5.0]
    assert lane.kinds.tolist() == [TRANSFER, COMPUTE, WAIT, TRANSFER, COMPUTE, WAIT]


def test_transfer_that_does_not_fit_before_a_call_happened_inside_it():
    rows = [TraceRow("worker 0", 0, "train", 0.0, 4.0, transfer_s=1.0, wait_s=1.0)]
    (lane,) = lanes_of(rows)
    assert lane.edges.tolist() == [0.0, 2.0, 3.0, 4.0]
    assert lane.kinds.tolist() == [COMPUTE, TRANSFER, WAIT]


@given(call_rows(), st.floats(0, 1), st.floats(0, 1))
def test_a_window_contains_the_same_time_as_its_bins(rows, low, high):
    (lane,) = lanes_of(rows)
    begin, length = lane.edges[0], lane.edges[-1] - lane.edges[0]
    low, high = begin + min(low, high) * length, begin + max(low, high) * length
    edges, kinds = lane.between(low, high)
    direct = np.bincount(kinds, np.diff(edges), 3) if len(kinds) else np.zeros(3)
    assert lane.binned(np.linspace(low, high, 8)).sum(axis=1) == pytest.approx(direct, abs=1e-6)


def test_lanes_of_workers_come_before_those_of_servers():
    names = ["server 10", "worker 10", "evaluator", "server 2", "worker 2", "worker 0"]
    assert sorted(names, key=lane_order) == ["worker 0", "worker 2", "worker 10", "server 2", "server 10", "evaluator"]


def test_a_lost_worker_is_marked_at_the_end_of_its_lane_unless_it_returned(runs):
    rows = runs.trace_rows(3, 20)
    rows = [row for row in rows if not (row.actor == "worker 1" and row.start_s > 0.6)]
    lost = {"event": "worker lost", "seconds": 9.0, "round": 10, "actor": "worker 1"}
    marks = {lane.actor: lane.lost_s for lane in lanes_of(rows, [lost])}
    assert marks["worker 1"] == max(row.end_s for row in rows if row.actor == "worker 1")
    assert marks["worker 0"] is marks["worker 2"] is marks["server 0"] is None
    back = {"event": "worker joined", "seconds": 9.5, "round": 11, "actor": "worker 1"}
    assert all(lane.lost_s is None for lane in lanes_of(rows, [lost, back]))


def test_rows_of_a_restarted_clock_follow_those_of_the_first_run(runs):
    once = lanes_of(runs.trace_rows(2, 10))
    twice = lanes_of(runs.trace_rows(2, 10) * 2)
    for one, two in zip(once, twice, strict=True):
        assert len(two.starts) == 2 * len(one.starts)
        assert two.starts[len(one.starts) :].min() >= span(once)[1]
        assert two.shares[COMPUTE] < one.shares[COMPUTE]  # the pause between counts as waiting


def test_a_short_run_is_shown_completely_and_a_long_one_as_an_excerpt(runs):
    assert [window.title for window in windows(lanes_of(runs.trace_rows(2, 10)))] == ["The whole run"]
    lanes = lanes_of(runs.trace_rows(2, 400))
    begin_s, end_s = excerpt(lanes, calls=12)
    assert span(lanes)[0] < begin_s < end_s < span(lanes)[1]
    inside = [(lane.starts >= begin_s) & (lane.ends <= end_s) for lane in lanes if lane.is_worker]
    assert [int(part.sum()) for part in inside] == [12, 12]


def test_the_first_death_has_its_own_window(runs):
    rows = [row for row in runs.trace_rows(2, 400) if not (row.actor == "worker 1" and row.start_s > 2)]
    lanes = lanes_of(rows, [{"event": "worker lost", "seconds": 2, "round": 150, "actor": "worker 1"}])
    (window,) = [window for window in windows(lanes) if "worker 1" in window.title]
    assert window.begin_s < lanes[1].lost_s < window.end_s


def test_a_selection_of_many_lanes_keeps_lost_actors_and_servers(runs):
    rows = runs.trace_rows(200, 2)
    lanes = lanes_of(rows, [{"event": "worker lost", "actor": "worker 77", "seconds": 0, "round": 1}])
    names = [lane.actor for lane in selection(lanes, 16)]
    assert len(names) == len(set(names)) == 16
    assert {"worker 0", "worker 77", "worker 199", "server 0"} <= set(names)
    assert names == sorted(names, key=lane_order)
