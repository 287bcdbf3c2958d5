"""Collectives in virtual time: their costs, the members that they wait for, and members that never arrive."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from chimera.core.call import work
from chimera.core.errors import ActorLost, ConfigurationError, RunError
from chimera.engines.simulated import Simulated
from chimera.engines.simulated.models.network import Network

LATENCY_S, BANDWIDTH = 1.0, 1000.0


class Member:
    def __init__(self) -> None:
        self.array = np.ones(250, np.float32)

    def reduce(self, group: Any, samples: int = 0, times: int = 1) -> float:
        for _ in range(times):
            work(samples=samples)
            group.all_reduce(self.array, "sum")
        return float(self.array[0])

    def spread(self, group: Any, root: int) -> None:
        group.broadcast(self.array, root=root)

    def meet(self, group: Any, samples: int = 0) -> None:
        work(samples=samples)
        group.barrier()

    def reduce_part(self, group: Any, size: int, op: str = "sum") -> None:
        group.all_reduce(np.ones(size, np.float32), op)

    def survive(self, group: Any) -> str:
        try:
            group.barrier()
        except ActorLost:
            return "survived"
        return "met"

    def plain(self, *_: Any) -> None:
        work(samples=10)

    def misuse(self, group: Any, array: Any) -> None:
        group.all_reduce(array)


def cluster(count: int, **options: Any) -> tuple[Simulated, list[Any], Any]:
    engine = Simulated(
        network={"latency_s": LATENCY_S, "bandwidth_bytes_s": BANDWIDTH} | options.pop("network", {}),
        compute={"seconds_per_call": 0.0, "seconds_per_sample": 1.0},
        **options,
    )
    members = [engine.spawn(Member, name=f"worker {rank}") for rank in range(count)]
    return engine, members, engine.group(members)


def starts(engine: Simulated) -> dict[str, Any]:
    return {row.actor: row for row in engine.trace()}


def test_an_all_reduce_costs_what_a_ring_does_after_the_last_has_come() -> None:
    engine, members, group = cluster(4)
    refs = [m.reduce(group, 10 * rank) for rank, m in enumerate(members)]
    assert engine.get(refs) == [4.0] * 4
    found = starts(engine)
    cost_s = 2 * 3 / 4 * 1000 / BANDWIDTH + 2 * 3 * LATENCY_S
    last_s = found["worker 3"].start_s + 30
    for rank in range(4):
        row = found[f"worker {rank}"]
        assert row.end_s == pytest.approx(last_s + cost_s)
        assert row.wait_s == pytest.approx(last_s - row.start_s - 10 * rank)
        assert (row.bytes_in, row.bytes_out) == (16 + 1500, 8 + 1500)  # scalars and handles count 8
        assert row.samples == 10 * rank


def test_the_slowest_member_sets_the_pace() -> None:
    engine, members, group = cluster(2, network={"nodes": {"worker 1": {"bandwidth_bytes_s": 10.0, "latency_s": 3.0}}})
    engine.get([m.reduce(group) for m in members])
    found = starts(engine)
    assert found["worker 0"].end_s == pytest.approx(found["worker 1"].start_s + 2 * 1 / 2 * 1000 / 10 + 2 * 3)


def test_broadcast_and_barrier() -> None:
    engine, members, group = cluster(3)
    engine.get([m.spread(group, 1) for m in members])
    found = starts(engine)
    assert found["worker 0"].end_s == pytest.approx(max(row.start_s for row in found.values()) + 1 + 2 * LATENCY_S)
    moved = [(found[f"worker {r}"].bytes_in, found[f"worker {r}"].bytes_out) for r in range(3)]
    assert moved == [(16 + 1000, 0), (16, 1000), (16 + 1000, 1000)]  # from 1 to 2 to 0
    engine.get([m.meet(group) for m in members])
    found = starts(engine)
    assert found["worker 0"].end_s == pytest.approx(max(row.start_s for row in found.values()) + 4 * LATENCY_S)


@pytest.mark.parametrize(("count", "steps", "passes"), [(2, 1, 1), (3, 2, 4 / 3), (5, 2, 8 / 5)])
def test_direct_collectives_take_at_most_two_steps(count: int, steps: int, passes: float) -> None:
    engine, members, group = cluster(count, network={"collectives": "direct"})
    cost_s = steps * LATENCY_S + passes * 1000 / BANDWIDTH
    for call, took_s in (("reduce", cost_s), ("spread", cost_s), ("meet", LATENCY_S)):
        engine.get([getattr(m, call)(group, *([1] if call == "spread" else [])) for m in members])
        found = starts(engine)
        assert found["worker 0"].end_s == pytest.approx(max(row.start_s for row in found.values()) + took_s)


@pytest.mark.parametrize(("collectives", "shares"), [("ring", 1), ("direct", 4)])
def test_a_trunk_is_shared_by_the_members_that_send_over_it(collectives: str, shares: int) -> None:
    racks = {"name": "racks", "hosts": 2, "bandwidth_bytes_s": BANDWIDTH / 10, "latency_s": 0.0}
    engine, members, group = cluster(4, network={"topology": racks, "collectives": collectives})
    engine.get([m.reduce(group) for m in members])
    found = starts(engine)
    took_s = found["worker 0"].end_s - max(row.start_s for row in found.values())
    steps, passes = (6, 2 * 3 / 4) if collectives == "ring" else (2, 2 / 4)
    assert took_s == pytest.approx(steps * LATENCY_S + passes * shares * 1000 / (BANDWIDTH / 10))


def test_an_unknown_algorithm_of_collectives_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ring or direct"):
        Network(collectives="tree")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"collectives; it may be 'ring', 'direct'"):
        cluster(2, network={"collectives": "tree"})


def test_a_member_alone_waits_for_nobody() -> None:
    engine, members, group = cluster(1)
    assert engine.get(members[0].reduce(group, 5)) == 1.0
    (row,) = engine.trace()
    assert row.end_s - row.start_s == 5


def test_no_threads_without_groups_and_none_after_close() -> None:
    before = threading.active_count()
    engine, members, _ = cluster(3)
    alone = engine.spawn(Member)
    engine.get([alone.plain() for _ in range(5)])
    assert threading.active_count() == before
    pair = engine.group(members[:2])
    members[0].meet(pair)
    assert threading.active_count() > before
    engine.close()
    assert threading.active_count() == before


def test_waiting_for_a_call_that_was_never_issued_is_told_and_not_done() -> None:
    engine, members, group = cluster(3)
    other = engine.spawn(Member, name="other")
    ref = members[0].meet(group)
    behind = members[0].plain()
    dependent = other.plain(behind)
    with pytest.raises(RunError, match=r"'meet' of worker 0 waits in a group for worker 1, worker 2"):
        engine.get(ref)
    with pytest.raises(
        RunError, match=r"'plain' of other waits for 'plain' of worker 0; 'plain' of worker 0 waits for 'meet'"
    ):
        engine.wait([dependent])
    before_s = engine.now()
    assert engine.wait([ref, dependent], count=2, timeout_s=5.0) == ([], [ref, dependent])
    assert engine.now() == before_s + 5
    for member in members[1:]:
        member.meet(group)
    assert engine.get([ref, behind, dependent]) == [None, None, None]


def test_a_crash_before_the_meeting_ends_the_waiting_then() -> None:
    engine, members, group = cluster(3, availability={"crash": {"worker 2": 50.0}})
    refs = [m.survive(group) for m in members[:2]]
    assert engine.get(refs) == ["survived", "survived"]  # its own call was never issued
    assert [actor.name for actor in engine.lost()] == ["worker 2"]
    assert starts(engine)["worker 0"].end_s == 50 + LATENCY_S


def test_other_refs_are_known_before_a_crash_that_lies_behind_them() -> None:
    engine, members, group = cluster(3, availability={"crash": {"worker 2": 50.0}})
    other = engine.spawn(Member)
    waiting, early = members[0].meet(group), other.plain()
    assert engine.wait([waiting, early]) == ([early], [waiting])
    assert engine.now() < 50
    rest = [m.meet(group) for m in members[1:]]
    assert engine.get([waiting, *rest]) == [None] * 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_crash_under_way_is_the_same_whoever_was_called_first(order: tuple[int, ...]) -> None:
    engine, members, group = cluster(3, availability={"crash": {"worker 2": 5.5}})
    refs = {rank: members[rank].reduce(group, 1, 10) for rank in order}  # a step lasts 1 + 4/3 + 4
    for rank in range(3):
        with pytest.raises(ActorLost, match="worker 2"):
            engine.get(refs[rank])
    found = starts(engine)
    assert found["worker 2"].end_s == 5.5
    assert found["worker 0"].end_s == found["worker 1"].end_s == 5.5 + LATENCY_S


def test_a_member_that_left_is_not_waited_for() -> None:
    engine, members, group = cluster(2, availability={"leave": {"worker 1": 3.0}})
    assert engine.get(members[0].survive(group)) == "survived"
    with pytest.raises(ActorLost, match="left"):
        engine.get(members[1].meet(group))


def test_a_kill_takes_back_the_meetings_that_lay_ahead() -> None:
    engine, members, group = cluster(3)
    refs = [m.reduce(group, 10) for m in members]
    engine.wait(refs, timeout_s=5.0)
    engine.kill(members[0])
    for ref in refs:
        with pytest.raises(ActorLost, match="worker 0"):
            engine.get(ref)
    assert [(row.actor, row.end_s, row.error) for row in engine.trace()] == [
        ("worker 0", 5.0, "ActorLost"),
        ("worker 1", 6.0, "ActorLost"),
        ("worker 2", 6.0, "ActorLost"),
    ]


def test_members_that_do_not_ask_for_the_same_are_told() -> None:
    engine, members, group = cluster(2)
    for other in (members[1].reduce_part(group, 3), members[1].meet(group)):
        ref = members[0].reduce_part(group, 2)
        for failed in (ref, other):
            with pytest.raises(ConfigurationError, match="worker 0: all_reduce sum 2, worker 1:"):
                engine.get(failed)


def test_misuse_is_told() -> None:
    engine, members, group = cluster(2)
    outsider = engine.spawn(Member)
    with pytest.raises(RunError, match="outside of a call on a member"):
        group.barrier()
    with pytest.raises(RunError, match="outside of a call on a member"):
        engine.get(outsider.meet(group))
    for wrong in (np.zeros(3), np.zeros(3, np.float32), [1.0]):  # float64, read-only as any argument is, no array
        with pytest.raises(ConfigurationError, match="writable float32"):
            engine.get(members[0].misuse(group, wrong))
    with pytest.raises(ConfigurationError, match="median"):
        engine.get(members[0].reduce_part(group, 1, "median"))
    with pytest.raises(ConfigurationError, match="rank 2 of a group of 2"):
        engine.get(members[0].spread(group, 2))
    for actors in ([], [members[0], members[0]]):
        with pytest.raises(ConfigurationError, match="at least one"):
            engine.group(actors)


def test_two_runs_have_one_timeline() -> None:
    def run() -> list[Any]:
        engine, members, group = cluster(5, seed=2)
        halves = [engine.group(members[:2]), engine.group(members[2:])]
        refs = [m.reduce(halves[rank >= 2], rank, 3) for rank, m in enumerate(members)]
        refs += [m.reduce(group, 1, 2) for m in reversed(members)]
        engine.get(refs)
        rows = engine.trace()
        engine.close()
        return rows

    assert run() == run()
