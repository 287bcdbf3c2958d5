"""Clients of the simulated engine that are on and off, compared with timelines computed by hand.

A latency is 1 s, data has no size unless a test says otherwise, and a call costs 10 s: the first one issued on an idle actor at
t runs from t + 1 to t + 11, and the driver knows at t + 12.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.call import get, work
from chimera.core.engine import Disturbance
from chimera.core.errors import ActorLost, ConfigurationError
from chimera.engines.simulated import Availability, Simulated
from chimera.engines.simulated.models.presence_models import AvailabilityModel, Diurnal, Markov
from chimera.engines.simulated.presence import Presence
from chimera.strategies.participation import Participation

COMPUTE = {"seconds_per_call": 10.0, "seconds_per_sample": 1.0}


class Client:
    administrative = frozenset(["state"])

    def step(self, *values: Any) -> int:
        return len(values)

    def make(self) -> Any:
        return np.ones(250, np.float32)

    def train(self) -> None:
        work(samples=5)

    def state(self) -> str:
        return "its state"

    def meet(self, group: Any) -> Any:
        return group.all_reduce(np.ones(250, np.float32))

    def ask(self, other: Any) -> int:
        return int(get(other.step()))

    def post(self, group: Any) -> None:
        group.send({1: np.ones(250, np.float32)})

    def take(self, group: Any) -> Any:
        return group.receive([0])[0].sum()


def world(folder: Path, rows: str, count: int = 2, **options: Any) -> tuple[Simulated, list[Any]]:
    path = folder / "on_off.csv"
    path.write_text("client,on_s,off_s\n" + rows.replace("; ", "\n") + "\n", encoding="utf-8")
    network = {"latency_s": 1.0, "bandwidth_bytes_s": options.pop("bandwidth", float("inf"))}
    availability = {"path": str(path), **options}
    engine = Simulated(network=network, compute=COMPUTE, availability=availability)
    return engine, [engine.spawn(Client, name=f"worker {rank}") for rank in range(count)]


def spans(engine: Simulated) -> list[tuple[str, float, float]]:
    return [(row.actor[-1], row.start_s, row.end_s) for row in engine.trace()]


@pytest.mark.parametrize("off_s", [0.5, 1.0, 1.5, 5.0, 10.5])
def test_an_absence_delays_an_answer_by_exactly_its_length(tmp_path: Path, off_s: float) -> None:
    engine, (a, b) = world(tmp_path, f"0,0,{off_s}; worker 0,{off_s + 30},inf")
    engine.wait([a.step(), b.step()], count=2)
    assert engine.now() == 12 + 30
    assert [end_s for actor, _, end_s in spans(engine)] == [11, 41]


def test_an_absent_client_receives_and_sends_nothing(tmp_path: Path) -> None:
    engine, (a, b) = world(tmp_path, "0,100,111; 0,200,inf", bandwidth=1000.0)
    value = a.make()  # the message sets out at 100, and the value is there at 111, as the client leaves
    b.step(value)
    engine.wait([b.step()])
    assert spans(engine) == [("0", 101, 111), ("1", 202, 212), ("1", 212, 222)]


def test_a_transfer_is_interrupted_by_an_absence_of_either_end(tmp_path: Path) -> None:
    for client in (0, 1):
        engine, (a, b) = world(tmp_path, f"{client},0,11.5; {client},20,inf", bandwidth=1000.0)
        engine.wait([b.step(a.make())])
        assert spans(engine) == [("0", 1, 11), ("1", 13 + 8.5, 23 + 8.5)]


def test_a_call_that_restarts_does_all_its_work_again(tmp_path: Path) -> None:
    rows = "0,0,9; 0,20,25; 0,40,inf"
    engine, (a, _) = world(tmp_path, rows, interrupted="restart")
    engine.wait([a.step(), a.step()], count=2)
    assert spans(engine) == [("0", 1, 50), ("0", 50, 60)]
    engine, (a, _) = world(tmp_path, rows)
    engine.wait([a.step(), a.step()], count=2)
    assert spans(engine) == [("0", 1, 22), ("0", 22, 47)]


def test_a_call_that_restarts_repeats_also_what_was_done_before_its_work(tmp_path: Path) -> None:
    for interrupted, end_s in (("continue", 23.0), ("restart", 35.0)):
        engine, (a, _) = world(tmp_path, "0,0,13; 0,20,inf", interrupted=interrupted)
        engine.wait([a.train()])  # 10 s of the call, and 5 s of samples
        assert spans(engine) == [("0", 1, end_s)]


def test_results_of_a_client_are_uploaded_at_once_and_the_notice_follows_them(tmp_path: Path) -> None:
    engine, (a, b) = world(tmp_path, "0,0,14; 0,500,inf", bandwidth=1000.0)
    value = a.make()
    engine.wait([value])
    assert engine.now() == 11 + 1 + 1
    engine.wait([b.step(), b.step()], count=2)
    assert engine.now() == 35
    engine.wait([b.step(value)])
    assert engine.now() == 47  # the client is off, and its value has arrived long before
    late = a.make()
    engine.wait([late])
    assert engine.now() == 500 + 1 + 10 + 1 + 1


def test_a_call_that_fits_into_no_interval_continues_after_ten_restarts(tmp_path: Path) -> None:
    engine, (a, _) = world(tmp_path, "0,0,8", period_s=20.0, interrupted="restart")
    engine.wait([a.step()])
    assert spans(engine) == [("0", 1, 11 * 20 + 2)]  # the tenth restart ends at 208


def test_calls_that_only_read_or_set_state_are_answered_while_a_client_is_off(tmp_path: Path) -> None:
    engine, (a, _) = world(tmp_path, "0,500,inf")
    assert engine.get(a.state()) == "its state"
    assert engine.now() == 12
    engine.wait([a.step()])
    assert engine.now() == 512


def test_intervals_of_a_file_repeat_after_the_period(tmp_path: Path) -> None:
    engine, (a, b) = world(tmp_path, "0,0,2; 0,8,10; 1,0,4; 1,4,10", period_s=10.0)
    assert [engine._scheduler._nodes[1].presence.is_on(t) for t in (0, 1.5, 2, 7.5, 8, 9.5, 10, 11.9, 12, 1e5)] == [
        *(True, True, False, False, True, True, True, True, False, True)
    ]
    engine.wait([b.step()])
    assert engine.now() == 12  # always on
    engine.wait([a.step()])
    assert spans(engine)[-1] == ("0", 19, 41)  # on from 18 to 22, from 28 to 32, and from 38


def test_after_the_last_interval_a_client_is_lost(tmp_path: Path) -> None:
    engine, (a, b) = world(tmp_path, "0,0,15")
    first, second = a.make(), a.step()
    later = b.step(first, b.step(b.step()))
    assert engine.get(later) == 2  # what the client had made before remains
    with pytest.raises(ActorLost, match="worker 0 left for good at 15 s"):
        engine.get(second)
    with pytest.raises(ActorLost):
        engine.get(a.step())
    assert [actor.name for actor in engine.lost()] == ["worker 0"]


def test_a_collective_waits_until_all_members_are_on(tmp_path: Path) -> None:
    engine, members = world(tmp_path, "0,0,20; 0,30,60; 0,100,inf; 1,0,5; 1,70,inf")
    group = engine.group(members)
    engine.wait([member.meet(group) for member in members], count=2)
    # Client 1 computes until 76, and client 0 returns at 100.
    assert {end_s for _, _, end_s in spans(engine)} == {102.0}


def test_messages_and_calls_between_actors_wait_for_absent_clients(tmp_path: Path) -> None:
    engine, members = world(tmp_path, "1,0,11.5; 1,20,30; 1,50,inf")
    group = engine.group(members)
    engine.wait([members[0].post(group), members[1].take(group)], count=2)
    assert engine.now() == 11 + 1 + 8.5 + 1
    engine.wait([members[0].ask(members[1])])
    assert engine.now() == 21.5 + 1 + 10 + (50 - 32.5) + 1 + 10 + 1 + 1


def test_a_disturbance_and_a_kill_of_an_absent_client_are_as_of_any_other(tmp_path: Path) -> None:
    engine, (a, b) = world(tmp_path, "0,0,5; 0,100,inf")
    ref = a.step()
    engine.wait([b.step()])
    engine.disturb(a, Disturbance("hang", for_s=10.0))
    assert engine.silent(1e9) == []
    engine.kill(a)
    with pytest.raises(ActorLost, match="worker 0 was killed"):
        engine.get(ref)


def test_what_a_client_that_hangs_never_does_ends_never_without_a_search(tmp_path: Path) -> None:
    engine, (a, b) = world(tmp_path, "0,0,5", period_s=10.0)
    engine.disturb(a, Disturbance("hang"))
    refs = [b.ask(a), b.step(a.make())]
    assert engine.wait(refs, timeout_s=1000.0) == ([], refs)
    known = engine._scheduler._nodes[1].presence
    assert known.begins_s(math.inf) == known.arrives_s(3.0, math.inf) == math.inf


def presence(intervals: list[tuple[float, float]], **options: Any) -> Presence:
    return Presence("worker 0", lambda: iter(intervals), **options)


@st.composite
def timetables(draw: st.DrawFn) -> list[tuple[float, float]]:
    borders = sorted(draw(st.lists(st.integers(0, 60), min_size=2, max_size=12, unique=True)))
    return list(zip(borders[::2], [*borders[1::2], 1000][: len(borders[::2])], strict=True))


@given(timetables(), st.integers(0, 70), st.integers(1, 30), st.booleans())
def test_work_takes_the_seconds_in_which_the_client_is_on(
    intervals: list[tuple[float, float]], begin_s: int, work_s: int, restarts: bool
) -> None:
    intervals = [*intervals, (2000.0, float("inf"))]
    on = {second for on_s, off_s in intervals[:-1] for second in range(int(on_s), int(off_s))} | set(range(2000, 2100))
    known = presence(intervals, restarts=restarts)
    assert [known.is_on(second) for second in range(80)] == [second in on for second in range(80)]
    first = min(second for second in on if second >= begin_s)
    assert known.begins_s(begin_s) == first
    end_s = known.works_until_s(begin_s, work_s, begin_s)
    if restarts:
        starts = [s for s in on if s >= begin_s and (s == first or s - 1 not in on)]
        assert end_s == min(s for s in starts if set(range(s, s + work_s)) <= on) + work_s
    else:
        assert end_s == sorted(second for second in on if second >= begin_s)[work_s - 1] + 1


def share_on(model: AvailabilityModel, times_s: list[float], clients: int) -> list[float]:
    known = [Presence("", lambda n=n: model.intervals(3, f"worker {n}")) for n in range(clients)]
    return [sum(client.is_on(time_s) for client in known) / clients for time_s in times_s]


def test_the_share_of_clients_that_are_on_tends_to_that_of_the_markov_chain() -> None:
    shares = share_on(Markov(mean_on_s=30.0, mean_off_s=70.0), [0.0, 50.0, 500.0], clients=2000)
    assert shares == pytest.approx([0.3] * 3, abs=0.04)
    (one,) = (Markov(mean_on_s=30.0, mean_off_s=70.0).intervals(3, "worker 0"),)
    taken = list(itertools.islice(one, 2000))
    assert sum(off_s - on_s for on_s, off_s in taken) / taken[-1][1] == pytest.approx(0.3, abs=0.03)


def test_diurnal_clients_follow_the_hours_of_the_day() -> None:
    hour = 3600.0
    steady = Diurnal(peak_s=2 * hour, jitter_s=0.0)
    times_s = [hours * hour for hours in (2, 8, 14)]
    day = share_on(steady, times_s, clients=500)
    assert day[0] > 0.6 > 0.3 > day[1] > day[2]
    assert share_on(steady, [time_s + 5 * 24 * hour for time_s in times_s], clients=500) == day
    jittered = Diurnal(on_s=20 * hour, jitter_s=100 * hour)
    taken = list(itertools.islice(jittered.intervals(0, "worker 0"), 100))
    assert all(off_s < on_s for (_, off_s), (on_s, _) in itertools.pairwise(taken))


class Alternating(AvailabilityModel):
    """Clients that are on in even minutes, of a user."""

    def intervals(self, seed: int, name: str) -> Iterator[tuple[float, float]]:
        return ((120.0 * number, 120.0 * number + 60) for number in itertools.count())


def test_a_model_of_a_user_is_named_by_its_path() -> None:
    engine = Simulated(availability={"model": f"{__file__}:Alternating"})
    a, server = engine.spawn(Client, name="worker 0"), engine.spawn(Client, name="server 0")
    assert engine.connected(a)
    engine._scheduler.now_s = 61.0
    assert [engine.connected(actor) for actor in (a, server)] == [False, True]


def timeline(seed: int, restored_at: int | None = None) -> tuple[bytes, bytes]:
    """Run rounds on absent clients with drawn devices; return the first rounds, and the others after a change of engines."""
    options = {
        "network": {"topology": {"name": "two-level", "edges": 2, "bandwidth_bytes_s": 1e4}},
        "compute": {"seconds_per_call": 3.0, "straggler_spread": 0.5},
        "devices": {"model": {"name": "pareto", "bandwidth_alpha": 2.0}},
        "availability": {"model": {"name": "markov", "mean_on_s": 20.0, "mean_off_s": 10.0}},
    }
    engine, traces = Simulated(seed=seed, **options), list[bytes]()
    for round_ in range(8):
        if round_ in (0, restored_at):
            state = engine.state()
            engine = Simulated(seed=seed, **options)
            clients = [engine.spawn(Client, name=f"worker {rank}") for rank in range(12)]
            if round_:
                engine.restore(state)
        chosen = Participation(0.5, seed=seed).chosen(clients, round_, connected=engine.connected)
        engine.wait([client.step(client.make()) for client in chosen], count=len(chosen))
        traces.append(msgspec.json.encode(engine.trace()))
    return b"".join(traces[:4]), b"".join(traces[4:])


def test_one_seed_gives_one_timeline_also_after_a_restart() -> None:
    whole = timeline(seed=1)
    assert whole == timeline(seed=1) == timeline(seed=1, restored_at=4)
    assert whole != timeline(seed=2)


def test_participants_that_are_off_are_replaced_by_others_that_are_on() -> None:
    choice, workers, on = Participation(0.2, seed=5), range(100), set(range(0, 100, 3))
    for round_ in range(20):
        plain, chosen = choice.chosen(workers, round_), choice.chosen(workers, round_, connected=on.__contains__)
        assert len(chosen) == len(set(chosen)) == 20
        assert set(plain) & on <= set(chosen) <= on
        assert chosen == sorted(chosen) == choice.chosen(workers, round_, connected=on.__contains__)
        assert (
            plain
            == choice.chosen(workers, round_, connected=lambda _: True)
            == choice.chosen(workers, round_, connected=lambda _: False)
        )
    assert Participation(1.0).chosen(range(4), 0, connected={1, 3}.__contains__) == [1, 3]
    counts = np.bincount(
        [place for r in range(600) for place in choice.chosen(range(10), r, connected={0, 1, 2, 3}.__contains__)]
    )
    assert counts[:4] == pytest.approx([300] * 4, abs=60)  # two of these four, each as often as any other


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("client,on_s\n0,1\n", "line 1: the columns are client, on_s; give client, on_s, off_s"),
        ("", "line 1: the columns are missing; give client, on_s, off_s"),
        ("client,on_s,off_s\n", "has no row below its header"),
        ("client,on_s,off_s\n0,1,2\n0,x,2\n", "line 3, column 'on_s': the value is 'x': it must be a number"),
        ("client,on_s,off_s\n0,-1,2\n", "line 2, column 'on_s': the value is -1: it must be zero or more"),
        ("client,on_s,off_s\n0,nan,2\n", "line 2, column 'on_s': the value is nan: it must be zero or more"),
        ("client,on_s,off_s\n0,1\n", "line 2: 2 values, and the header has 3 columns"),
        ("client,on_s,off_s\n,1,2\n", "line 2, column 'client': the value is empty"),
        ("client,on_s,off_s\n0,2,2\n", "line 2, column 'off_s': the value is 2: it must be above on_s = 2"),
        (
            "client,on_s,off_s\n0,0,5\n0,4,6\n",
            "line 3, column 'on_s': the value is 4: the interval before of this client",
        ),
        ("client,on_s,off_s\n0,0,11\n", "line 2, column 'off_s': the value is 11: it must be at most period_s = 10"),
        ("client,on_s,off_s\n0,inf,inf\n", "line 2, column 'on_s': the value is inf: it must be finite"),
        ("client,on_s,off_s\ndriver,0,1\n", "line 2, column 'client': the value is 'driver', which is always on"),
        ("client,on_s,off_s\n0,0," + " " * 5000, "has a line of more than 4096 characters"),
        ("client,on_s,off_s\n0,0,\xff\n", "is no CSV file in UTF-8"),
        ('client,on_s,off_s\n"0,0,1\n', "is no CSV file in UTF-8"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_its_place(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "on_off.csv"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigurationError) as caught:
        Availability(path=str(path), period_s=10.0)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "on_off.csv"
    path.write_text("client,on_s,off_s\n0,0,1\n0,2,3\n0,4,5\n", encoding="utf-8")
    monkeypatch.setattr("chimera.engines.simulated.models.records.MAX_ROWS", 2)
    with pytest.raises(ConfigurationError, match="line 4: at most 2 rows"):
        Availability(path=str(path))
    with path.open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(ConfigurationError, match="at most 268435456 can be read"):
        Availability(path=str(path))
    with pytest.raises(ConfigurationError, match="cannot be read: it is not a file"):
        Availability(path=str(tmp_path))
    monkeypatch.setattr("chimera.engines.simulated.presence._MAX_INTERVALS", 1000)
    with pytest.raises(ConfigurationError, match="worker 0 is on in more than 1000 intervals"):
        Presence("worker 0", lambda: Markov(mean_on_s=1e-6, mean_off_s=1e-6).intervals(0, "worker 0")).is_on(1e9)
