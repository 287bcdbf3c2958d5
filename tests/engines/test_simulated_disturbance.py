"""Hanging, slow and cut-off actors in virtual time, compared with timelines computed by hand.

A latency is 1 s, data has no size unless a test says otherwise, and a call costs 10 s: the first one issued on an idle
actor at t runs from t + 1 to t + 11, and the driver knows at t + 12.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from chimera.core.call import now, record, work
from chimera.core.engine import Disturbance
from chimera.core.errors import ActorLost, RunError, TimeLimitError
from chimera.engines.simulated import Simulated

HANG = Disturbance("hang")


class Node:
    def step(self, *values: Any) -> int:
        return len(values)

    def make(self) -> Any:
        return np.ones(250, np.float32)

    def raising(self) -> None:
        raise ValueError("its own")

    def meet(self, group: Any, times: int = 1) -> str:
        for _ in range(times):
            group.all_reduce(np.ones(1, np.float32))
        return "met"

    def steps(self, group: Any, times: int) -> None:
        for number in range(times):
            began_s = now()
            group.all_reduce(np.ones(1, np.float32))
            record(f"step {number}", began_s)

    def survive(self, group: Any) -> str:
        try:
            group.barrier()
        except ActorLost:
            return "survived"
        return "met"


def world(count: int, **options: Any) -> tuple[Simulated, list[Any]]:
    network = {"latency_s": 1.0, "bandwidth_bytes_s": float("inf")} | options.pop("network", {})
    engine = Simulated(network=network, compute={"seconds_per_call": 10.0}, **options)
    return engine, [engine.spawn(Node, name=f"worker {rank}") for rank in range(count)]


def move_to(engine: Simulated, time_s: float) -> None:
    """Let the driver wait for something that takes longer."""
    busy = engine.spawn(Node, name="busy")
    engine.wait([[busy.step() for _ in range(10)][-1]], timeout_s=time_s - engine.now())
    assert engine.now() == time_s


def spans(engine: Simulated) -> list[tuple[str, float, float, str]]:
    named = [row for row in engine.trace() if row.actor.startswith("worker")]
    return [(row.actor, row.start_s, row.end_s, row.error) for row in named]


def names(actors: list[Any]) -> list[str]:
    return [actor.name for actor in actors]


def test_who_hangs_ends_nothing_any_more_and_the_clock_goes_on() -> None:
    engine, (a, b) = world(2)
    stands = a.make()
    engine.wait([stands])
    under_way, behind = a.step(), a.step()
    dependent = b.step(behind)
    move_to(engine, 15.0)
    engine.disturb(a, HANG)
    later = a.step(b.step())
    refs = [under_way, behind, dependent, later]
    assert engine.wait(refs, count=1, timeout_s=1000.0) == ([], refs)
    assert engine.now() == 1015.0
    with pytest.raises(TimeLimitError):
        engine.get(under_way, timeout_s=5.0)
    assert engine.now() == 1020.0
    assert engine.lost() == []
    assert engine.get(stands).size == 250  # earlier results remain


def test_a_wait_for_who_hangs_is_told_and_names_him() -> None:
    engine, (a, b, c) = world(3)
    ref = b.step(c.step(a.step()))
    group = engine.group([b, c])
    behind = [b.meet(group), c.meet(group)]
    move_to(engine, 5.0)
    engine.disturb(a, HANG)
    new = c.step(a.step())
    for waited in (ref, *behind, new):
        with pytest.raises(RunError, match=r"this would wait forever: .*worker 0 hangs since 5 s"):
            engine.get(waited)
        with pytest.raises(RunError, match="worker 0 hangs"):
            engine.wait([waited])


def test_silent_names_who_hangs_and_nobody_who_waits_or_computes() -> None:
    engine, (a, b, c) = world(3)
    engine.wait([a.step(), b.step(), c.step()], count=3)
    engine.disturb(a, HANG)
    waiting = b.step(a.step())
    computing = [c.step() for _ in range(100)]
    assert engine.silent(30.0) == []
    engine.wait([waiting], timeout_s=29.0)
    assert engine.silent(30.0) == []
    engine.wait([waiting, computing[-1]], timeout_s=1.0)
    assert names(engine.silent(30.0)) == ["worker 0"]
    engine.kill(a)
    assert engine.silent(30.0) == []
    assert names(engine.lost()) == ["worker 0"]


def test_a_kill_ends_the_waiting_for_who_hangs() -> None:
    engine, (a, b, c) = world(3)
    first, second = a.step(), a.step()
    dependent, independent = b.step(second), c.step()
    raised = a.raising()
    move_to(engine, 5.0)
    engine.disturb(a, HANG)
    later = a.step()
    queued = c.step(later)
    engine.wait([first], timeout_s=95.0)
    engine.kill(a)
    for ref in (first, second, dependent, raised, later, queued, a.step()):
        with pytest.raises(ActorLost, match="worker 0 was killed at 100 s"):
            engine.get(ref)
    assert engine.now() == 101.0
    assert engine.get(independent) == 0
    assert spans(engine) == [("worker 2", 1, 11, ""), ("worker 0", 1, 100, "ActorLost")]


def test_what_was_stuck_behind_what_waited_goes_on_after_the_kill() -> None:
    engine, (a, b, c) = world(3)
    lost = b.step(a.step())
    behind = b.make()
    further = c.step(behind)
    move_to(engine, 5.0)
    engine.disturb(a, HANG)
    new = b.step()
    assert engine.wait([behind, further, new], timeout_s=95.0) == ([], [behind, further, new])
    engine.kill(a)
    assert engine.get([further, new]) == [1, 0]
    assert engine.now() == 122.0
    with pytest.raises(ActorLost):
        engine.get(lost)
    assert [span for span in spans(engine) if not span[3]] == [
        ("worker 1", 100, 110, ""),
        ("worker 1", 110, 120, ""),
        ("worker 2", 111, 121, ""),
    ]


def test_who_waits_for_two_that_hang_waits_until_both_are_dead() -> None:
    engine, (a, b, c) = world(3)
    for_a, for_b = c.step(a.step()), c.step(b.step())
    last = c.step()
    for victim in (a, b):
        engine.disturb(victim, HANG)
    engine.wait([last], timeout_s=50.0)
    engine.kill(a)
    with pytest.raises(ActorLost, match="worker 0"):
        engine.get(for_a)
    with pytest.raises(RunError, match="worker 1 hangs"):
        engine.get(last)
    engine.wait([last], timeout_s=49.0)
    engine.kill(b)
    with pytest.raises(ActorLost, match="worker 1"):
        engine.get(for_b)
    assert engine.get(last) == 0


@pytest.mark.parametrize("before", [True, False])
def test_a_group_waits_for_a_member_that_hangs_until_it_is_killed(before: bool) -> None:
    engine, members = world(3)
    group = engine.group(members)
    refs = [member.survive(group) for member in members] if before else []
    move_to(engine, 5.0)
    engine.disturb(members[1], HANG)
    refs = refs or [member.survive(group) for member in members]
    assert engine.wait(refs, timeout_s=45.0) == ([], refs)
    assert engine.silent(45.0) == [members[1]]
    with pytest.raises(RunError, match="worker 1"):
        engine.get(refs[0])
    engine.kill(members[1])
    with pytest.raises(ActorLost):
        engine.get(refs[1])
    done, pending = engine.wait([refs[0], refs[2]], count=2)
    assert (len(done), pending, engine.now()) == (2, [], 52.0)


def test_a_crash_that_was_to_come_ends_a_hang() -> None:
    engine, (a, b) = world(2, availability={"crash": {"worker 0": 50.0}})
    engine.disturb(a, HANG)
    ref = b.step(a.step())
    with pytest.raises(ActorLost, match="worker 0 crashed at 50 s"):
        engine.get(ref)
    assert 50.0 <= engine.now() <= 52.0
    assert names(engine.lost()) == ["worker 0"]


def test_a_respawned_actor_of_the_same_name_is_well() -> None:
    engine, (a,) = world(1)
    engine.disturb(a, HANG)
    engine.wait([a.step()], timeout_s=20.0)
    engine.kill(a)
    engine.disturb(a, HANG)  # dead actors are not disturbed
    again = engine.spawn(Node, name="worker 0")
    assert engine.get(again.step()) == 0
    assert engine.now() == 32.0
    assert engine.silent(0.0) == []


def test_a_hang_of_some_time_delays_what_is_under_way_and_what_waits_for_it() -> None:
    engine, (a, b, c) = world(3)
    first = a.step()  # from 1 to 11
    behind, dependent, other = a.step(), b.step(first), c.step()
    move_to(engine, 5.0)
    engine.disturb(a, Disturbance("hang", for_s=100.0))
    assert names(engine.silent(0.0)) == ["worker 0"]
    engine.wait([first, behind, dependent, other], count=4)
    assert engine.silent(0.0) == []
    assert spans(engine) == [
        ("worker 2", 1, 11, ""),
        ("worker 0", 1, 111, ""),
        ("worker 0", 111, 121, ""),
        ("worker 1", 112, 122, ""),
    ]


def test_calls_that_would_start_in_a_hang_start_after_it_and_who_has_slack_is_not_late() -> None:
    engine, (a, b, c) = world(3)
    slow = c.step(c.step())  # stands at 21
    joint = b.step(a.step(), slow)  # from 22 on
    engine.disturb(a, Disturbance("hang", for_s=3.0))  # a computes from 3 to 13 instead
    engine.wait([joint])
    assert spans(engine)[-1] == ("worker 1", 22, 32, "")
    engine.disturb(a, Disturbance("hang", for_s=20.0))
    engine.wait([a.step()])
    assert spans(engine) == [("worker 0", 53, 63, "")]


def test_a_hang_of_some_time_delays_a_meeting_for_all() -> None:
    engine, members = world(2)
    group = engine.group(members)
    refs = [member.meet(group) for member in members]  # meet at 11, end at 13
    engine.disturb(members[0], Disturbance("hang", for_s=30.0))
    engine.wait(refs, count=2)
    assert [end_s for _, _, end_s, _ in spans(engine)] == [42.0, 42.0]
    engine.disturb(members[1], Disturbance("hang", for_s=30.0))  # at 43
    refs = [member.meet(group) for member in members]
    engine.wait(refs, count=2)
    assert [end_s for _, _, end_s, _ in spans(engine)] == [85.0, 85.0]


def test_what_a_cut_off_actor_makes_is_there_when_the_cut_is_over() -> None:
    engine, (a, b, c) = world(3)
    before = a.make()
    engine.wait([before])  # 12
    under_way = a.step()  # from 13 to 23
    taken = b.step(under_way)
    move_to(engine, 15.0)
    engine.disturb(a, Disturbance("cut off", for_s=100.0))
    late, behind = c.step(before), a.step()
    assert engine.wait([under_way, taken, late, behind], timeout_s=90.0)[0] == []
    assert names(engine.silent(90.0)) == ["worker 0"]
    engine.wait([under_way, taken, late, behind], count=4)
    assert spans(engine)[1:] == [
        ("worker 0", 13, 115, ""),
        ("worker 0", 115, 125, ""),
        ("worker 1", 116, 126, ""),
        ("worker 2", 116, 126, ""),
    ]


def test_who_hangs_without_end_goes_on_when_something_else_goes_wrong_instead() -> None:
    engine, (a, b, c) = world(3)
    first = a.step()  # from 1 to 11
    dependent, behind = b.step(first), b.step()
    move_to(engine, 5.0)
    engine.disturb(a, HANG)
    refs = [first, dependent, behind, a.step(), c.step(a.step())]
    assert engine.wait(refs, timeout_s=100.0) == ([], refs)
    engine.disturb(a, Disturbance("slow", factor=2.0))
    engine.get(refs)
    assert spans(engine) == [
        ("worker 0", 1, 117, ""),  # it had 6 s to go
        ("worker 1", 118, 128, ""),
        ("worker 0", 117, 137, ""),
        ("worker 1", 128, 138, ""),
        ("worker 0", 137, 157, ""),
        ("worker 2", 158, 168, ""),
    ]
    assert engine.silent(0.0) == []


def test_a_group_that_waited_for_who_hangs_meets_when_he_goes_on() -> None:
    engine, members = world(2)
    group = engine.group(members)
    engine.disturb(members[0], HANG)
    refs = [member.meet(group, 2) for member in members]
    engine.wait(refs, timeout_s=50.0)
    engine.disturb(members[0], Disturbance("slow", factor=1.0))
    assert engine.get(refs) == ["met", "met"]
    assert [row[2] for row in spans(engine)] == [64.0, 64.0]  # begins at 50, computes until 60, and meets twice
    first = members[1].meet(group)
    second = members[0].meet(group)  # at 76
    move_to(engine, 70.0)
    engine.disturb(members[0], HANG)
    assert engine.wait([first, second], timeout_s=30.0) == ([], [first, second])
    engine.disturb(members[0], Disturbance("slow", factor=1.0))
    assert engine.get([first, second]) == ["met", "met"]
    assert [row[2] for row in spans(engine)] == [108.0, 108.0]


def test_a_slow_spell_or_a_cut_ends_with_the_next_disturbance() -> None:
    engine, (a,) = world(1)
    engine.disturb(a, Disturbance("slow", factor=9.0))
    engine.disturb(a, Disturbance("cut off", for_s=1000.0))
    move_to(engine, 5.0)
    engine.disturb(a, Disturbance("slow", factor=2.0))
    assert engine.silent(0.0) == []
    engine.wait([a.step()])
    assert spans(engine) == [("worker 0", 6, 26, "")]


def test_what_is_computed_in_a_slow_spell_takes_the_factor() -> None:
    engine, (a, b) = world(2)
    first, second, third = a.step(), a.step(), a.step()
    joint = b.step(second)
    move_to(engine, 5.0)
    engine.disturb(a, Disturbance("slow", factor=2.0, for_s=20.0))  # until 25
    engine.wait([first, second, third, joint], count=4)
    assert spans(engine) == [
        ("worker 0", 1, 17, ""),
        ("worker 0", 17, 31, ""),  # 4 of its 10 s in the spell
        ("worker 0", 31, 41, ""),
        ("worker 1", 32, 42, ""),
    ]
    engine.disturb(a, Disturbance("slow", factor=3.0))  # 43
    engine.disturb(a, Disturbance("slow", factor=2.0))
    engine.wait([a.step()])
    assert spans(engine) == [("worker 0", 44, 64, "")]
    assert engine.silent(0.0) == []


def test_a_value_on_its_way_to_the_driver_never_comes_from_a_call_that_hangs() -> None:
    engine, (a,) = world(1, network={"bandwidth_bytes_s": 100.0})
    value = a.make()  # stands at 11, and needs 10 s on the network
    with pytest.raises(TimeLimitError):
        engine.get(value, timeout_s=5.0)
    engine.disturb(a, HANG)
    with pytest.raises(TimeLimitError):
        engine.get(value, timeout_s=500.0)


def chaos(seed: int) -> tuple[bytes, bytes]:
    """Run a parameter server whose workers hang, are slow and are cut off; kill and replace silent workers."""

    class Worker:
        def gradient(self, weights: Any) -> Any:
            work(samples=3)
            return weights * np.float32(0.1) + np.float32(1)

    class Server:
        def __init__(self) -> None:
            self.weights = np.zeros(50, np.float32)

        def update(self, *gradients: Any) -> Any:
            self.weights = self.weights - np.float32(0.1) * np.mean(gradients, axis=0)
            return self.weights

        def get(self) -> Any:
            return self.weights

    engine = Simulated(
        network={"latency_s": 1.0}, compute={"seconds_per_call": 5.0, "straggler_spread": 0.5}, seed=seed
    )
    server, workers = engine.spawn(Server), [engine.spawn(Worker, name=f"w{rank}") for rank in range(4)]
    weights: Any = server.get()
    rng = np.random.default_rng(seed)
    for turn in range(40):
        ahead = [weights := server.update(*[worker.gradient(weights) for worker in workers]) for _ in range(3)]
        if turn % 3 == 0:
            what = ("hang", "slow", "cut off")[turn // 3 % 3]
            engine.wait(ahead[-1:], timeout_s=float(rng.integers(5, 20)))
            for_s = float("inf") if turn % 2 else float(rng.integers(1, 40))
            engine.disturb(workers[int(rng.integers(4))], Disturbance(what, for_s=for_s))  # type: ignore[arg-type]
        while engine.wait(ahead, count=len(ahead), timeout_s=20.0)[1]:
            for victim in engine.silent(30.0):
                engine.kill(victim)
                workers[names(workers).index(victim.name)] = engine.spawn(Worker, name=victim.name)
        try:
            engine.get(ahead[-1])
        except ActorLost:
            weights = server.get()
    return msgspec.json.encode(engine.trace()), engine.get(server.get()).tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_gives_one_timeline_whatever_goes_wrong(seed: int) -> None:
    first = chaos(seed)
    assert first == chaos(seed)
    assert b"ActorLost" in first[0]


def test_on_each_actor_calls_follow_each_other_whatever_goes_wrong() -> None:
    rows = msgspec.json.decode(chaos(7)[0])
    by_actor: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_actor.setdefault(row["rank"], []).append(row)
    for own in by_actor.values():
        own.sort(key=lambda row: (row["start_s"], row["end_s"]))
        assert all(row["start_s"] <= row["end_s"] for row in own)
        for before, after in itertools.pairwise(own):
            assert after["start_s"] >= before["end_s"] - 1e-9


def test_a_hang_delays_the_later_parts_of_a_call() -> None:
    ends_s = []
    for hangs in (False, True):
        engine, members = world(2)
        group = engine.group(members)
        done = [member.steps(group, 4) for member in members]
        move_to(engine, 15.0)
        if hangs:
            engine.disturb(members[0], Disturbance("hang", for_s=5.0))
        engine.get(done)
        ends_s.append({row.call: row.end_s for row in engine.trace() if row.actor == "worker 0"})
    undisturbed, disturbed = ends_s
    assert 11 < undisturbed["step 0"] < 15 < undisturbed["step 3"]
    assert disturbed == {call: end_s + 5 * (end_s > 15) for call, end_s in undisturbed.items()}
