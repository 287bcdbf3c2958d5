from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.report.events import KINDS, RUN, kind_of, marks_in, points_of, select_events
from chimera.report.html import write_report
from chimera.report.plots import draw_run
from chimera.report.timeline import Window, lanes_of, windows


def event(name, seconds, actor="worker 1", number=3, detail="died"):
    return {"event": name, "seconds": seconds, "round": number, "actor": actor, "detail": detail}


def chaos(kills=60):
    """Return events in which a worker dies every 20 ms and is replaced 6 ms later."""
    told = []
    for kill in range(kills):
        at, actor = 0.6 + kill * 0.02, f"worker {kill % 4}"
        told += [event("worker lost", at, actor), event("worker respawned", at + 0.006, actor, detail="a new process")]
    return told


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("worker lost", "lost"),
        ("server lost", "lost"),
        ("worker respawned", "back"),
        ("worker joined", "back"),
        ("restored from snapshot", "back"),
        ("gradient rejected", "rejected"),
        ("worker dropped", "lost"),
        ("went back", "back"),
        ("fault", "fault"),
        ("fault missed", "fault"),
        ("group rebuilt", "back"),
        ("something new", "other"),
    ],
)
def test_each_event_has_a_symbol(name, kind):
    assert kind_of({"event": name}).name == kind


def test_an_event_is_in_the_row_of_its_actor_at_its_time(runs):
    lanes = lanes_of(runs.trace_rows(3, 40))
    told = [
        event("gradient rejected", 0.7),
        event("node lost", 0.8, "node 7"),
        event("cut", None),
        event("late", 99.0),
    ]
    points = points_of(told, lanes)
    assert [(point.row, point.at_s) for point in points] == [
        ("worker 1", 0.7),
        (RUN, 0.8),
        ("worker 1", pytest.approx(0.9)),  # the run was over by then
    ]
    (mark,) = marks_in(Window("", 0.75, 0.85), points)[RUN]
    assert mark.text == "node lost, node 7, round 3, 800 ms: died"


def test_a_permanent_loss_is_marked_at_the_end_of_the_lane(runs):
    rows = [row for row in runs.trace_rows(3, 40) if not (row.actor == "worker 1" and row.start_s > 0.7)]
    told = [event("worker lost", 0.62), event("worker respawned", 0.63), event("worker lost", 0.85)]
    lanes = lanes_of(rows, told)
    points = points_of(told, lanes)
    assert [point.at_s for point in points] == [0.62, 0.63, lanes[1].lost_s]
    titles = [window.title for window in windows(lanes_of(rows), [(0.62, "worker 1")])]
    assert "Around the loss of worker 1" in titles  # also of one that came back


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.5, 0.9), st.sampled_from(["worker 0", "worker 1", "gone"]), st.sampled_from(KINDS)),
        max_size=60,
    )
)
def test_marks_of_a_kind_do_not_overlap_and_count_all_events(told):
    from chimera.core.trace import TraceRow

    lanes = lanes_of([TraceRow(f"worker {rank}", rank, "step", 0.5, 0.9) for rank in range(2)])
    points = points_of([event(kind.words[0], at, actor) for at, actor, kind in told], lanes)
    window = Window("", 0.5, 0.9)
    marks = marks_in(window, points)
    for row, found in marks.items():
        assert found == sorted(found, key=lambda mark: -KINDS.index(mark.kind))
        counted = sum(
            int(count.replace(",", "")) for mark in found for count in re.findall(r", ([\d,]+) times", mark.text)
        )
        singles = sum("times" not in mark.text for mark in found)
        assert counted + singles == sum(point.row == row for point in points)
    per_kind = [[mark.kind for mark in found].count(kind) for found in marks.values() for kind in KINDS]
    assert max(per_kind, default=0) <= 1 / 0.011 + 1


def test_sixty_kills_are_marked_explained_and_listed(runs):
    folder = runs.make(workers=4, rounds=200, events=chaos())
    text = write_report(folder).read_text()
    whole = text[text.index("The whole run") : text.index("Time breakdown")]
    assert whole.count('class="mark lost"') == whole.count('class="mark back"') == 60
    assert "worker lost, round 3, 600 ms: died" in whole
    legend = text[text.index("<h2>Timeline") : text.index('<figure class="timeline"')]
    assert "worker lost" in legend
    assert "worker respawned" in legend
    assert "Around the loss of worker 0" in text  # although it came back
    table = text[text.index("<h2>Events") :]
    assert table.count('class="mark lost"') == 60
    from report.test_plots import overlapping

    assert overlapping(draw_run(folder)) == []


def test_a_flood_of_one_event_does_not_hide_the_others_in_the_table(runs):
    flood = [event("gradient rejected", 0.5 + i * 1e-4, "worker 2", i) for i in range(3000)]
    told = select_events([*flood, event("worker lost", 0.9)], 200)
    assert told[-1]["event"] == "worker lost"
    assert len(told) == 21
    text = write_report(runs.make(workers=4, rounds=200, events=[*flood, event("worker lost", 0.9)])).read_text()
    assert "2,980 more events in events.jsonl." in text
    assert re.search(r"gradient rejected, [\d,]+ times, from", text)
    assert len(text) < 600_000


def test_lanes_with_events_are_selected_from_many(runs):
    told = [event("gradient rejected", 0.6, "worker 77")]
    text = write_report(runs.make(workers=200, rounds=4, events=told)).read_text()
    assert "worker 77" in text[text.index("<h2>Timeline") : text.index("Time breakdown")]
