"""Messages in virtual time: their costs, their order, and members that hang or are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.core import call
from chimera.core.engine import Disturbance
from chimera.core.errors import ActorLost, RunError
from chimera.engines.simulated import Simulated

LATENCY_S, BANDWIDTH = 1.0, 1000.0
KB = np.zeros(250, np.float32)
"""An array that a link carries in one second."""


class Member:
    def __init__(self) -> None:
        self.array = KB.copy()

    def send(self, group: Any, targets: list[int], samples: int = 0) -> float:
        call.work(samples=samples)
        group.send(dict.fromkeys(targets, self.array))
        return call.now()

    def receive(
        self, group: Any, sources: list[int], count: int | None = None, samples: int = 0
    ) -> tuple[list[int], float]:
        call.work(samples=samples)
        return [*group.receive(sources, count)], call.now()

    def receive_twice(self, group: Any, source: int) -> tuple[float, float]:
        """Return when the value arrived, and when the loss of its sender became known."""
        group.receive([source])
        arrived_s = call.now()
        try:
            group.receive([source])
        except ActorLost:
            return arrived_s, call.now()
        return arrived_s, 0.0

    def shares(self, group: Any, source: int) -> Any:
        return group.receive([source])[source].base is not None

    def send_twice(self, group: Any) -> None:
        group.send({1: 0})
        group.send({1: 1})

    def serve(self, group: Any, steps: int) -> list[int]:
        """Answer the first worker that has sent, and return the order of the workers."""
        order = []
        for _ in range(steps):
            (worker,) = group.receive(range(1, group.size), count=1)
            call.work(samples=1)
            group.send({worker: self.array})
            order.append(worker)
        return order

    def work(self, group: Any, steps: int, samples: int) -> None:
        for step in range(steps):
            began_s = call.now()
            call.work(samples=samples)
            group.send({0: self.array})
            group.receive([0])
            call.record(f"step {step}", began_s)


def cluster(count: int, **options: Any) -> tuple[Simulated, list[Any], Any]:
    engine = Simulated(
        network={"latency_s": LATENCY_S, "bandwidth_bytes_s": BANDWIDTH} | options.pop("network", {}),
        compute={"seconds_per_call": 0.0, "seconds_per_sample": 1.0},
        **options,
    )
    members = [engine.spawn(Member, name=f"worker {rank}") for rank in range(count)]
    return engine, members, engine.group(members)


START_S = LATENCY_S + 24 / BANDWIDTH
"""When a call with three small arguments starts: plain values and a handle count 8 bytes."""

SMALL_S = 0.03
"""Plain arguments and results share the links with the arrays; they take less than this."""


def test_a_message_takes_the_latency_and_the_time_of_its_bytes() -> None:
    engine, members, group = cluster(2)
    sent, received = members[0].send(group, [1], 10), members[1].receive(group, [0], None, 2)
    sent_s = engine.get(sent)
    assert engine.get(received)[1] == pytest.approx(sent_s + LATENCY_S + 1, abs=SMALL_S)
    rows = {row.call: row for row in engine.trace()}
    receiver = rows["receive"]
    assert rows["send"].bytes_out == 1000 + 8
    assert rows["send"].end_s == sent_s  # the sender does not wait
    assert receiver.bytes_in == 1000 + call.nbytes([group, [0], None, 2])
    assert receiver.wait_s == pytest.approx(sent_s - (receiver.start_s + 2))
    assert receiver.transfer_s == pytest.approx(
        receiver.start_s + LATENCY_S + 1, abs=SMALL_S
    )  # its arguments and the array


def test_messages_share_the_uplink_of_the_sender_and_the_downlink_of_the_receiver() -> None:
    engine, members, group = cluster(4)
    received = [member.receive(group, [0]) for member in members[1:]]
    sent_s = engine.get(members[0].send(group, [1, 2, 3], 20))
    assert [at_s - sent_s for _, at_s in engine.get(received)] == pytest.approx([2, 3, 4], abs=SMALL_S)
    group = engine.group(members)
    received = members[0].receive(group, [1, 2, 3])
    sent_s = max(engine.get([member.send(group, [0], 20) for member in members[1:]]))
    assert engine.get(received)[1] == pytest.approx(sent_s + 4, abs=2 * SMALL_S)


def test_the_first_to_arrive_is_received_first_whoever_was_called_first() -> None:
    engine, members, group = cluster(4)
    first = members[0].receive(group, [1, 2, 3], 2)
    for rank, samples in ((1, 30), (2, 10), (3, 20)):
        members[rank].send(group, [0], samples)
    ranks, at_s = engine.get(first)
    assert ranks == [2, 3]
    assert 20 < at_s < 30


def test_a_server_answers_a_fast_worker_more_often_than_a_slow_one() -> None:
    engine, members, group = cluster(3)
    served = members[0].serve(group, 8)
    members[1].work(group, 6, 1)
    members[2].work(group, 2, 16)
    assert engine.get(served) == [1, 1, 1, 2, 1, 1, 1, 2]


def test_rows_of_parts_end_before_the_call_and_have_all_its_costs() -> None:
    engine, members, group = cluster(2)
    engine.get([members[0].serve(group, 3), members[1].work(group, 3, 4)])
    *parts, last = [row for row in engine.trace() if row.actor == "worker 1"]
    assert [row.call for row in parts] == ["step 0", "step 1", "step 2"]
    assert [row.samples for row in parts] == [4, 4, 4]
    assert [row.end_s - row.start_s for row in parts] == pytest.approx([4 + 2 + 1 + 2] * 3)
    assert [row.wait_s for row in parts] == pytest.approx([2 + 1] * 3)
    assert [row.bytes_out for row in parts] == [1000] * 3
    assert (last.call, last.start_s, last.end_s) == ("work", parts[-1].end_s, parts[-1].end_s)
    assert (last.bytes_in, last.bytes_out, last.samples) == (0, 0, 0)


def test_rows_of_parts_after_a_kill_are_dropped() -> None:
    engine, members, group = cluster(2)
    refs = [members[0].serve(group, 3), members[1].work(group, 3, 4)]
    engine.wait(refs, timeout_s=15.0)
    engine.kill(members[1])
    with pytest.raises(ActorLost):
        engine.get(refs[0])
    parts = [row for row in engine.trace() if row.actor == "worker 1"]
    assert [(row.call, row.error) for row in parts] == [("step 0", ""), ("work", "ActorLost")]
    assert parts[0].end_s == parts[1].start_s
    assert parts[1].end_s == 15.0


def test_a_value_sent_before_a_crash_arrives_after_it() -> None:
    engine, members, group = cluster(3, availability={"crash": {"worker 0": 20.5}})
    received = [member.receive_twice(group, 0) for member in members[1:]]
    sent_s = engine.get(members[0].send(group, [1, 2], 18))
    arrivals_s, losses_s = zip(*engine.get(received), strict=True)
    assert arrivals_s == pytest.approx([sent_s + 2, sent_s + 3], abs=SMALL_S)
    assert losses_s == (20.5 + LATENCY_S, arrivals_s[1])


def test_no_value_is_sent_after_a_crash() -> None:
    engine, members, group = cluster(2, availability={"crash": {"worker 0": 15.0}})
    members[0].send(group, [1], 18)
    received = members[1].receive(group, [0])
    with pytest.raises(ActorLost, match="worker 0 was lost at 15 s"):
        engine.get(received)
    (row,) = [row for row in engine.trace() if row.actor == "worker 1"]
    assert row.end_s == 15 + LATENCY_S


def test_a_kill_takes_back_what_would_have_been_sent_later() -> None:
    engine, members, group = cluster(2)
    received, sent = members[1].receive(group, [0]), members[0].send(group, [1], 18)
    engine.wait([received], timeout_s=10.0)
    engine.kill(members[0])
    for ref in (received, sent):
        with pytest.raises(ActorLost, match="worker 0 was"):
            engine.get(ref)
    assert {row.end_s for row in engine.trace()} == {10.0, 10.0 + LATENCY_S}


def test_a_member_that_left_ends_the_waits_after_its_last_call() -> None:
    engine, members, group = cluster(2, availability={"leave": {"worker 0": 3.0}})
    received = members[1].receive_twice(group, 0)
    sent_s = engine.get(members[0].send(group, [1], 18))
    assert engine.get(received) == pytest.approx((sent_s + 2, sent_s + 2), abs=SMALL_S)


@pytest.mark.parametrize(("what", "for_s", "delay_s"), [("hang", 7.0, 7.0), ("cut off", 30.0, 40 - 18 - START_S)])
def test_messages_of_a_disturbed_member_are_delayed(what: Any, for_s: float, delay_s: float) -> None:
    engine, members, group = cluster(2)
    sent, received = members[0].send(group, [1], 18), members[1].receive(group, [0])
    engine.wait([received], timeout_s=10.0)
    engine.disturb(members[0], Disturbance(what, for_s=for_s))
    assert engine.get(received)[1] == pytest.approx(START_S + 18 + delay_s + 2, abs=SMALL_S)
    engine.get(sent)


def test_a_receiver_waits_for_a_hanging_member_until_it_is_revived_or_dies() -> None:
    for dies in (False, True):
        engine, members, group = cluster(2)
        _, received = members[0].send(group, [1], 18), members[1].receive(group, [0])
        engine.wait([received], timeout_s=10.0)
        engine.disturb(members[0], Disturbance("hang"))
        with pytest.raises(RunError, match="'receive' of worker 1 waits in a group for worker 0, which hangs"):
            engine.get(received)
        assert engine.wait([received], timeout_s=50.0) == ([], [received])
        if dies:
            engine.kill(members[0])
            with pytest.raises(ActorLost, match="worker 0"):
                engine.get(received)
        else:
            engine.disturb(members[0], Disturbance("slow", for_s=1.0))
            assert engine.get(received)[1] == pytest.approx(START_S + 18 + 50 + 2, abs=SMALL_S)


def test_a_receiver_that_hangs_continues_later() -> None:
    engine, members, group = cluster(2)
    received = members[1].receive(group, [0])
    engine.wait([received], timeout_s=5.0)
    engine.disturb(members[1], Disturbance("hang", for_s=50.0))
    members[0].send(group, [1])
    assert engine.get(received)[1] == 55.0


def test_members_that_wait_for_each_other_are_found() -> None:
    engine, members, group = cluster(3)
    refs = [member.receive(group, [(rank + 1) % 3]) for rank, member in enumerate(members)]
    with pytest.raises(RunError, match="'receive' of worker 0 waits in a group for worker 1"):
        engine.get(refs)


def test_a_second_value_without_an_answer_is_refused() -> None:
    engine, members, group = cluster(2)
    with pytest.raises(RunError, match="worker 0 sends a second value to worker 1: it must receive one in between"):
        engine.get(members[0].send_twice(group))


def test_arrays_are_sent_without_a_copy() -> None:
    engine, members, group = cluster(2)
    members[0].send(group, [1])
    assert engine.get(members[1].shares(group, 0))


def test_a_message_to_itself_costs_nothing() -> None:
    engine, members, group = cluster(2)
    sent_s = engine.get(members[0].send(group, [0]))
    assert engine.get(members[0].receive(group, [0]))[1] == pytest.approx(sent_s, abs=2 * LATENCY_S + SMALL_S)
    assert sum(row.bytes_in + row.bytes_out for row in engine.trace()) < 200


def test_misuse_is_told() -> None:
    engine, _, group = cluster(2)
    outsider = engine.spawn(Member)
    with pytest.raises(RunError, match="outside of a call on a member"):
        group.send({0: 1})
    with pytest.raises(RunError, match="outside of a call on a member"):
        engine.get(outsider.receive(group, [0]))


def test_two_runs_have_one_timeline() -> None:
    def run() -> list[Any]:
        engine, members, group = cluster(5, seed=2)
        refs = [members[0].serve(group, 20), *(member.work(group, 5, rank) for rank, member in enumerate(members[1:]))]
        engine.get(refs)
        rows = engine.trace()
        engine.close()
        return rows

    assert run() == run()


class Server:
    def serve(self, group: Any, steps: int) -> None:
        """Work on a message in each part."""
        for _ in range(steps):
            began_s = call.now()
            group.receive([1])
            call.work(elements=10)
            group.send({1: 0})
            call.record("update", began_s)

    def ask(self, group: Any, steps: int) -> None:
        for _ in range(steps):
            group.send({0: 0})
            group.receive([0])


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_a_part_that_works_on_messages_takes_as_long_as_a_call_with_these_arguments(spread: float) -> None:
    compute = {"seconds_per_call": 0.5, "seconds_per_element": 0.01, "straggler_spread": spread}
    with Simulated(network={"latency_s": LATENCY_S}, compute=compute) as engine:
        members = [engine.spawn(Server, name=f"member {rank}") for rank in range(2)]
        group = engine.group(members)
        engine.get([members[0].serve(group, 40), members[1].ask(group, 40)])
        rows = [row for row in engine.trace() if row.call == "update"]
    work_s = np.array([row.end_s - row.start_s - row.wait_s - row.transfer_s for row in rows[1:]])
    assert len(work_s) == 39
    if not spread:
        assert work_s == pytest.approx(np.full(39, 0.5 + 10 * 0.01))
    else:
        assert np.std(np.log(work_s)) == pytest.approx(spread, rel=0.4)  # each part has a factor of its own
