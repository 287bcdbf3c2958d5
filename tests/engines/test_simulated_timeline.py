"""The clock of the simulated engine, compared with timelines computed by hand.

Unless a test says otherwise a latency is 1 s, a link carries 1000 bytes/s and a call costs 10 s, so that an array of
250 float32 needs 1 s on each link.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from chimera.core.call import work
from chimera.core.errors import ActorLost, TimeLimitError
from chimera.core.trace import TraceRow
from chimera.engines.simulated import Simulated

NETWORK = {"latency_s": 1.0, "bandwidth_bytes_s": 1000.0}
COMPUTE = {"seconds_per_call": 10.0, "seconds_per_sample": 1.0, "seconds_per_element": 0.5}


class Node:
    def make(self, *_: Any) -> Any:
        return np.ones(250, np.float32)

    def nothing(self, *_: Any) -> None:
        return None

    def count(self, *_: Any) -> int:
        return len(_)

    def work(self, samples: int = 0, elements: int = 0) -> None:
        work(samples=samples, elements=elements)

    def two(self) -> tuple[Any, Any]:
        return np.ones(250, np.float32), np.ones(250, np.float32)

    def exit(self) -> None:
        raise SystemExit(3)

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])


def simulated(
    network: dict[str, Any] | None = None, compute: dict[str, Any] | None = None, **options: Any
) -> Simulated:
    return Simulated(network=NETWORK | (network or {}), compute=COMPUTE | (compute or {}), **options)


def nodes(engine: Simulated, count: int, role: str = "worker") -> list[Any]:
    return [engine.spawn(Node, name=f"{role} {rank}") for rank in range(count)]


def rows(engine: Simulated) -> dict[tuple[str, str], TraceRow]:
    """Return the rows of all computed calls, also of those whose end the driver's clock has not reached."""
    return {(row.actor, row.call): row for row in engine._scheduler.timeline.take_rows(1e12)}


def span(row: TraceRow) -> tuple[float, float]:
    return row.start_s, row.end_s


def test_a_call_starts_when_its_message_has_crossed_and_is_known_a_latency_after_its_end() -> None:
    engine = simulated()
    (a,) = nodes(engine, 1)
    engine.wait([a.nothing()])
    assert engine.now() == 1 + 10 + 1
    assert [span(row) for row in engine.trace()] == [(1, 11)]


def test_calls_on_one_actor_follow_each_other_without_a_gap() -> None:
    engine = simulated()
    (a,) = nodes(engine, 1)
    engine.wait([a.nothing() for _ in range(3)], count=3)
    assert [(*span(row), row.transfer_s) for row in engine.trace()] == [(1, 11, 1), (11, 21, 0), (21, 31, 0)]


def test_get_brings_the_value_to_the_driver_once() -> None:
    engine = simulated()
    (a,) = nodes(engine, 1)
    ref = a.make()
    engine.wait([ref])
    assert engine.now() == 12
    engine.get(ref)
    assert engine.now() == 12 + 1 + 1  # it sets out when it is asked for
    engine.get([ref, ref])
    assert engine.now() == 14


def test_arguments_of_the_driver_cross_with_the_message() -> None:
    engine = simulated()
    a, b = nodes(engine, 2)
    a.nothing(np.ones(500, np.float32))
    b.nothing(np.ones(250, np.float32))
    found = rows(engine)
    assert (found["worker 0", "nothing"].start_s, found["worker 0", "nothing"].bytes_in) == (3, 2000)
    assert found["worker 1", "nothing"].start_s == 4  # behind the first on the driver's uplink


def test_a_value_goes_from_actor_to_actor_and_stays_there() -> None:
    engine = simulated()
    a, b = nodes(engine, 2)
    value = a.make()
    b.nothing(value)
    b.count(value)
    a.count(value)
    found = rows(engine)
    first, again, own = found["worker 1", "nothing"], found["worker 1", "count"], found["worker 0", "count"]
    assert (span(first), first.transfer_s, first.bytes_in) == ((13, 23), 2, 1000)
    assert (span(again), again.transfer_s, again.bytes_in) == ((23, 33), 0, 0)
    assert (span(own), own.transfer_s, own.bytes_in) == ((11, 21), 0, 0)


def test_transfers_queue_on_the_uplink_of_the_sender() -> None:
    engine = simulated()
    server, *workers = nodes(engine, 4)
    value = server.make()  # stands at 11
    for worker in workers:
        worker.nothing(value)
    assert sorted(row.start_s for row in rows(engine).values() if row.call == "nothing") == [13, 14, 15]


def test_transfers_queue_on_the_downlink_of_the_receiver() -> None:
    engine = simulated()
    server, *workers = nodes(engine, 4)
    server.nothing(*[worker.make() for worker in workers])
    row = rows(engine)["worker 0", "nothing"]
    assert (row.start_s, row.transfer_s, row.bytes_in) == (11 + 1 + 3, 4, 3000)


def test_two_results_share_the_uplink_of_their_maker() -> None:
    engine = simulated()
    maker, *servers = nodes(engine, 3)
    for server, piece in zip(servers, maker.two(returns=2), strict=True):
        server.nothing(piece)
    assert sorted(row.start_s for row in rows(engine).values() if row.call == "nothing") == [13, 14]


def test_a_straggler_named_first_does_not_hold_up_the_link_for_the_others() -> None:
    engine = simulated(compute={"slow": {"worker 1": 3.0}})
    server, straggler, quick = nodes(engine, 3)
    late, early = straggler.make(), quick.make()  # stand at 31 and 11
    server.nothing(late, early)
    server.count(early)
    assert rows(engine)["worker 0", "nothing"].start_s == 33  # early came at 13, long before

    engine = simulated(compute={"slow": {"worker 1": 3.0}})
    server, straggler, quick = nodes(engine, 3)
    other = engine.spawn(Node, name="other")
    server.nothing(straggler.make())  # reserves the downlink from 32 to 33 ...
    other.nothing(quick.make())
    server.count(quick.make())  # ... which does not move what crosses from 22 to 23
    assert quick.name == "worker 2"
    assert rows(engine)["worker 0", "count"].start_s == 43


def test_a_slow_sender_fills_only_its_share_of_a_fast_downlink() -> None:
    engine = simulated({"nodes": {"server 0": {"bandwidth_bytes_s": 100_000.0}}})
    (server,) = nodes(engine, 1, "server")
    server.nothing(*[worker.make() for worker in nodes(engine, 10)])
    assert rows(engine)["server 0", "nothing"].start_s == pytest.approx(11 + 1 + 1 + 9 * 0.01)


def test_a_fast_sender_waits_for_a_slow_downlink() -> None:
    engine = simulated({"nodes": {"worker 1": {"bandwidth_bytes_s": 100.0}}})
    a, b, c = nodes(engine, 3)
    value = a.make()
    b.nothing(value)
    c.nothing(value)
    found = rows(engine)
    assert found["worker 1", "nothing"].start_s == 11 + 1 + 10
    assert found["worker 2", "nothing"].start_s == 11 + 1 + 2


def test_a_path_has_the_greater_latency_of_its_ends() -> None:
    engine = simulated({"nodes": {"worker 0": {"latency_s": 5.0}, "worker 1": {"latency_s": 0.0}}})
    a, b = nodes(engine, 2)
    value = a.make()
    b.nothing(value)
    found = rows(engine)
    assert span(found["worker 0", "make"]) == (5, 15)
    assert found["worker 1", "nothing"].start_s == 15 + 5 + 1


def test_infinite_bandwidth_costs_latency_only() -> None:
    engine = simulated({"bandwidth_bytes_s": float("inf")})
    a, b = nodes(engine, 2)
    b.nothing(a.make())
    assert rows(engine)["worker 1", "nothing"].start_s == 12


def test_a_call_lasts_what_it_declares_times_the_slowness_of_its_actor() -> None:
    engine = simulated({"bandwidth_bytes_s": float("inf")}, compute={"slow": {"worker 1": 4.0}})
    for node in nodes(engine, 2):
        node.work(samples=5, elements=6)
    found = rows(engine)
    for name, lasts_s in (("worker 0", 10 + 5 + 3), ("worker 1", 4 * 18)):
        row = found[name, "work"]
        assert (row.end_s - row.start_s, row.samples) == (lasts_s, 5)


def test_stragglers_depend_on_name_and_call_number_and_nothing_else() -> None:
    def durations(order: list[int], seed: int) -> dict[str, list[float]]:
        engine = simulated(compute={"spread": 0.5, "straggler_spread": 0.5}, seed=seed)
        workers = nodes(engine, max(order) + 1)
        for rank in order:
            workers[rank].nothing()
        found: dict[str, list[float]] = {}
        for row in engine._scheduler.timeline.take_rows(1e12):
            found.setdefault(row.actor, []).append(round(row.end_s - row.start_s, 9))
        return found

    one, other = durations([0, 0, 1, 1], seed=3), durations([2, 1, 0, 1, 2, 0], seed=3)
    assert all(other[name] == one[name] for name in one)
    assert len({duration for found in other.values() for duration in found}) == 6
    assert durations([0, 1], seed=4)["worker 0"][0] != one["worker 0"][0]


def test_draws_are_log_normal_with_median_one() -> None:
    engine = simulated({"latency_s": 0.0}, compute={"seconds_per_call": 1.0, "straggler_spread": 0.7})
    (a,) = nodes(engine, 1)
    for _ in range(4000):
        a.nothing()
    logs = np.log([row.end_s - row.start_s for row in engine._scheduler.timeline.take_rows(1e12)])
    assert abs(logs.mean()) < 0.04
    assert abs(logs.std() - 0.7) < 0.03


def test_who_joins_late_starts_late() -> None:
    engine = simulated(availability={"join": {"worker 1": 100.0}})
    a, b = nodes(engine, 2)
    value = a.make()
    b.nothing(value)
    assert rows(engine)["worker 1", "nothing"].start_s == 102  # an absent actor receives nothing


def test_who_leaves_ends_its_call_and_takes_no_other() -> None:
    engine = simulated(availability={"leave": {"worker 0": 15.0}})
    (a,) = nodes(engine, 1)
    refs = [a.nothing() for _ in range(3)]  # from 1, 11 and 21
    assert engine.get(refs[:2]) == [None, None]
    assert [actor.name for actor in engine.lost()] == ["worker 0"]
    with pytest.raises(ActorLost, match="worker 0 left at 15 s"):
        engine.get(refs[2])
    assert [span(row) for row in engine.trace()] == [(1, 11), (11, 21)]


def test_a_crash_takes_the_running_call_and_those_behind_it() -> None:
    engine = simulated(availability={"crash": {"worker 0": 15.0}})
    a, b = nodes(engine, 2)
    refs = [a.make() for _ in range(3)]
    dependent = b.nothing(refs[1])
    assert engine.wait([*refs, dependent], count=2) == ([*refs, dependent], [])
    assert engine.now() == 16
    assert [actor.name for actor in engine.lost()] == ["worker 0"]
    for ref in (refs[1], refs[2], dependent):
        with pytest.raises(ActorLost, match="worker 0 crashed at 15 s"):
            engine.get(ref)
    assert [(*span(row), row.error) for row in engine.trace()] == [(1, 11, ""), (11, 15, "ActorLost")]


def test_an_idle_actor_crashes_too_and_one_that_takes_its_name_does_not() -> None:
    engine = simulated(availability={"crash": {"worker 0": 5.0}, "join": {"worker 0": 2.0}})
    (a,) = nodes(engine, 1)
    engine.wait([engine.spawn(Node).nothing()])
    assert [actor.name for actor in engine.lost()] == ["worker 0"]
    with pytest.raises(ActorLost):
        engine.get(a.nothing())
    (again,) = nodes(engine, 1)
    assert engine.get(again.nothing()) is None


def test_a_call_that_ends_at_the_very_crash_still_counts() -> None:
    engine = simulated(availability={"crash": {"worker 0": 11.0}})
    (a,) = nodes(engine, 1)
    assert engine.get(a.nothing()) is None


def test_an_actor_that_exits_is_lost() -> None:
    engine = simulated()
    (a,) = nodes(engine, 1)
    with pytest.raises(ActorLost, match="exited"):
        engine.get(a.exit())
    assert [actor.name for actor in engine.lost()] == ["worker 0"]


def test_waiting_moves_the_clock_to_the_limit_and_no_further() -> None:
    engine = simulated(compute={"slow": {"worker 1": 9.0}})
    a, b = nodes(engine, 2)
    quick, slow = a.nothing(), b.nothing()  # known at 12 and 92
    assert engine.wait([quick, slow], count=2, timeout_s=20.0) == ([quick], [slow])
    assert engine.now() == 20
    with pytest.raises(TimeLimitError):
        engine.get(slow, timeout_s=5.0)
    assert engine.now() == 25
    assert engine.wait([slow, quick], count=2) == ([quick, slow], [])
    assert engine.now() == 92


def test_a_quorum_does_not_wait_for_the_straggler() -> None:
    engine = simulated(compute={"slow": {"worker 1": 9.0}})
    workers = nodes(engine, 4)
    refs = [worker.nothing() for worker in workers]
    done, pending = engine.wait(refs, count=3)
    assert (done, pending) == ([refs[0], refs[2], refs[3]], [refs[1]])
    assert engine.now() == 12


def test_a_kill_takes_back_what_lay_ahead_and_what_depended_on_it() -> None:
    engine = simulated()
    victim, other, third = nodes(engine, 3)
    lost = victim.make()  # ends at 11
    dependent, independent = other.nothing(lost), third.nothing()
    after = other.count(independent)
    engine.wait([independent], timeout_s=5.0)
    engine.kill(victim)
    for ref in (lost, dependent):
        with pytest.raises(ActorLost, match="worker 0 was killed at 5 s"):
            engine.get(ref)
    assert engine.now() == 6
    assert engine.get([independent, after]) == [None, 1]
    assert [(row.actor, *span(row), row.error) for row in engine.trace()] == [
        ("worker 0", 1, 5, "ActorLost"),
        ("worker 2", 1, 11, ""),
        ("worker 1", 23, 33, ""),  # where the clock stood when it was computed
    ]


def test_what_is_put_once_is_stored_once() -> None:
    engine = simulated()
    array = np.ones(1000, np.float32)
    for value in (engine.put(array), nodes(engine, 1)[0].make()):
        addresses = engine.get([node.address(value) for node in nodes(engine, 3)])
        assert len(set(addresses)) == 1
        assert addresses[0] != array.__array_interface__["data"][0]


def experiment(seed: int) -> tuple[bytes, bytes]:
    """Run three asynchronous rounds with stragglers, a crash and a late worker; return rows and weights."""

    class Worker:
        def __init__(self, rank: int) -> None:
            self.rng = np.random.default_rng(rank)

        def gradient(self, weights: Any) -> Any:
            work(samples=int(self.rng.integers(1, 9)))
            return weights * np.float32(0.1) + self.rng.normal(size=weights.size).astype(np.float32)

    class Server:
        def __init__(self) -> None:
            self.weights = np.zeros(100, np.float32)

        def update(self, gradient: Any) -> Any:
            self.weights -= np.float32(0.1) * gradient
            return self.weights

    engine = simulated(
        compute={"spread": 0.3, "straggler_spread": 0.5},
        availability={"crash": {"worker 2": 60.0}, "join": {"worker 4": 40.0}},
        seed=seed,
    )
    server, workers = (
        engine.spawn(Server, name="server 0"),
        [engine.spawn(Worker, r, name=f"worker {r}") for r in range(6)],
    )
    weights: Any = engine.put(np.zeros(100, np.float32))
    pending = {worker.gradient(weights): worker for worker in workers}
    for _ in range(40):
        (ref, *_), _ = engine.wait(list(pending))
        worker = pending.pop(ref)
        if worker not in engine.lost():
            weights = server.update(ref)
            pending[worker.gradient(weights)] = worker
    return msgspec.json.encode(engine.trace()), engine.get(weights).tobytes()


def test_one_seed_gives_one_timeline_and_the_same_bits() -> None:
    first = experiment(seed=5)
    assert first == experiment(seed=5)
    assert b"ActorLost" in first[0]
    assert first[0] != experiment(seed=6)[0]


def test_a_thousand_workers_reach_what_they_must_when_they_must() -> None:
    class Worker:
        def __init__(self, rank: int) -> None:
            self.target = np.full(1000, rank, np.float32)

        def gradient(self, weights: Any) -> Any:
            work(samples=1)
            return weights - self.target

    class Server:
        def __init__(self) -> None:
            self.weights = np.zeros(1000, np.float32)

        def update(self, *gradients: Any) -> Any:
            self.weights = self.weights - np.float32(0.5) * np.mean(gradients, axis=0)
            return self.weights

    engine = simulated({"latency_s": 0.5, "bandwidth_bytes_s": 4000.0})
    workers = [engine.spawn(Worker, rank) for rank in range(1000)]
    server = engine.spawn(Server)
    weights: Any = engine.put(np.zeros(1000, np.float32))
    for _ in range(30):
        gradients = [worker.gradient(weights) for worker in workers]
        done, _ = engine.wait(gradients, count=1000)
        assert len(done) == 1000
        weights = server.update(*gradients)
        engine.wait([weights])
    np.testing.assert_allclose(engine.get(weights), 499.5 * (1 - 0.5**30), rtol=1e-5)
    trace = engine.trace()
    assert len(trace) == 30 * 1001
    assert sum(row.samples for row in trace) == 30_000
    assert sum(row.bytes_in for row in trace) == 2 * 30 * 1000 * 4000
    # A round: the weights cross the server's uplink one by one, and the last worker computes. Then the driver calls the update,
    # for which the gradients cross the server's downlink one by one; then the driver receives its result.
    down_s, gradient_s, news_s, up_s, update_s = 0.5 + 1000, 11.0, 0.5, 0.5 + 1000, 10.0
    assert engine.now() == pytest.approx(30 * (down_s + gradient_s + news_s + up_s + update_s + news_s) + 1.5)
