"""Actors with handles of other actors call them as the driver does, without the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.core import call
from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ConfigurationError, RunError, TimeLimitError
from conformance.actors import Box, Caller, Counter, Faulty, Holder, OddError, Puller, Relay, Shard
from conformance.test_trace import rows_of_calls
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)


@pytest.mark.parametrize("size", [3, 50_000])
def test_workers_train_on_a_sharded_server_without_the_driver(engine: Engine, world: World, size: int) -> None:
    servers = [engine.spawn(Shard, size + shard) for shard in range(2)]
    workers = [engine.spawn(Puller, servers) for _ in range(3)]
    for seen in engine.get([worker.train(5) for worker in workers], timeout_s=world.limit_s):
        for shard in seen:
            assert 5 <= shard[0] <= 15  # its own pushes arrived before its last pull
            np.testing.assert_array_equal(shard, np.full_like(shard, shard[0]))
    for shard, server in enumerate(servers):  # every push has arrived completely and once
        weights = engine.get(server.value(), timeout_s=world.limit_s)
        np.testing.assert_array_equal(weights, np.full(size + shard, 15, np.float32))


def test_calls_of_one_caller_on_one_actor_run_in_the_order_of_issue(engine: Engine, world: World) -> None:
    counter = engine.spawn(Counter, 100)
    callers = [engine.spawn(Caller, counter) for _ in range(2)]
    engine.get(
        [caller.tell("add", range(n, n + 40)) for n, caller in zip((0, 1000), callers, strict=True)], world.limit_s
    )
    engine.get([caller.ask("add", -1) for caller in callers], timeout_s=world.limit_s)
    seen = engine.get(counter.history(), timeout_s=world.limit_s)
    assert [n for n in seen[1:] if 0 <= n < 100] == list(range(40))
    assert [n for n in seen[1:] if n >= 1000] == list(range(1000, 1040))


def test_a_call_of_another_actor_waits_for_the_constructor(engine: Engine, world: World) -> None:
    """The other actor may be so near that its call overtakes the large argument of the constructor."""
    holders = [engine.spawn(Holder, np.full(1_000_000, number, np.float32)) for number in range(3)]
    callers = [engine.spawn(Caller, holder) for holder in holders]
    for number, (value,) in enumerate(engine.get([c.ask("value") for c in callers], timeout_s=world.limit_s)):
        np.testing.assert_array_equal(value[:10], np.full(10, number, np.float32))


def test_a_chain_of_actors(engine: Engine, world: World) -> None:
    last = engine.spawn(Caller, engine.spawn(Relay))
    first = engine.spawn(Caller, engine.spawn(Caller, last))
    assert engine.get(first.ask("ask", "ask", "plus", 1.0), timeout_s=world.limit_s) == [[[2.0]]]


def test_refs_of_a_caller_are_arguments_of_its_further_calls(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller, *(engine.spawn(Relay) for _ in range(3)))
    array = np.zeros(50_000, np.float32)
    np.testing.assert_array_equal(engine.get(caller.pass_on(array), timeout_s=world.limit_s), array + 3)


def test_several_results_are_several_refs(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller, engine.spawn(Relay), engine.spawn(Relay))
    value = np.arange(6, dtype=np.float32)
    total = engine.get(caller.split(value, 3), timeout_s=world.limit_s)
    np.testing.assert_array_equal(total, value.reshape(3, 2).sum(axis=0))


def test_the_driver_and_an_actor_call_the_same_actor(engine: Engine, world: World) -> None:
    counter = engine.spawn(Counter)
    caller = engine.spawn(Caller, counter)
    refs = []
    for _ in range(10):
        refs += [caller.ask("add", 1), counter.add(1)]
    engine.get(refs, timeout_s=world.limit_s)
    assert sum(engine.get(counter.history(), timeout_s=world.limit_s)) == 20


def test_handles_can_be_inside_lists_dictionaries_objects_and_results(engine: Engine, world: World) -> None:
    relay, caller = engine.spawn(Relay, name="the relay"), engine.spawn(Caller)
    place = {"here": [Box(relay)]}
    assert engine.get(caller.ask_in(place, "echo", 5), timeout_s=world.limit_s) == 5
    assert engine.get(caller.ask_in(engine.put(place), "echo", 6), timeout_s=world.limit_s) == 6
    assert engine.get(caller.ask_in(relay.echo(place), "echo", 7), timeout_s=world.limit_s) == 7
    back = engine.get(relay.echo(place), timeout_s=world.limit_s)["here"][0].content
    assert back is relay
    engine.get(caller.meet(relay, caller), timeout_s=world.limit_s)
    assert engine.get(caller.names(), timeout_s=world.limit_s) == ["the relay", caller.name]


def test_a_ref_is_kept_from_call_to_call(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller, engine.spawn(Holder))
    engine.get(caller.keep("value"), timeout_s=world.limit_s)
    for _ in range(2):
        (value,) = engine.get(caller.kept(), timeout_s=world.limit_s)
        np.testing.assert_array_equal(value, np.arange(1000))


def test_a_ref_inside_an_argument_is_an_error(engine: Engine, world: World) -> None:
    with pytest.raises((ConfigurationError, TypeError), match="argument of its own"):
        engine.get(engine.spawn(Caller, engine.spawn(Relay)).nest(), timeout_s=world.limit_s)


def test_an_exception_of_the_callee_keeps_its_class(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller, engine.spawn(Faulty, name="culprit"))
    kind, text, cause = engine.get(caller.error_of("odd", 7, "as requested"), timeout_s=world.limit_s)
    assert (kind, text) == ("OddError", "(7, 'as requested')")
    assert "culprit" in cause
    assert "raise OddError(code, detail)" in cause
    with pytest.raises(OddError) as caught:  # and is raised in the driver if the caller does not catch it
        engine.get(caller.ask("odd", 8), timeout_s=world.limit_s)
    assert caught.value.code == 8
    assert engine.get(caller.ask("fine"), timeout_s=world.limit_s) == ["fine"]


def test_a_failure_spreads_to_calls_with_its_ref(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller, engine.spawn(Relay), engine.spawn(Relay))
    with pytest.raises(TypeError):
        engine.get(caller.pass_on("text"), timeout_s=world.limit_s)


def test_a_wrong_number_of_results_is_an_error(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller, engine.spawn(Relay))
    for returns in (0, 3):
        with pytest.raises(ConfigurationError, match="returns"):
            engine.get(caller.ask("echo", [1, 2], returns=returns), timeout_s=world.limit_s)


def test_get_in_an_actor_keeps_its_time_limit(engine: Engine, world: World) -> None:
    relay = engine.spawn(Relay, name="slow one")
    caller = engine.spawn(Caller, relay)
    hung = world.hang(relay)
    began_s = engine.now()
    kind, text, _ = engine.get(caller.error_of("wait_for_ever", world.ever, timeout_s=0.2), timeout_s=world.limit_s)
    assert kind == TimeLimitError.__name__
    assert "slow one" in text
    assert 0.2 <= engine.now() - began_s < world.limit_s / 2
    assert engine.wait([hung], timeout_s=0.0) == ([], [hung])


def test_the_death_of_a_callee_ends_the_wait_of_its_callers(engine: Engine, world: World) -> None:
    victim = engine.spawn(Relay, name="victim")
    callers = [engine.spawn(Caller, victim) for _ in range(2)]
    engine.get([caller.ask("echo", 1) for caller in callers], timeout_s=world.limit_s)
    hung = world.hang(victim)  # as does every call on it; the order of the three is not defined
    waiting = [callers[0].error_of("wait_for_ever", world.ever), callers[1].ask("wait_for_ever", world.ever)]
    assert engine.wait(waiting, timeout_s=0.2) == ([], waiting)
    engine.kill(victim)
    kind, text, _ = engine.get(waiting[0], timeout_s=3.0)
    assert kind == ActorLost.__name__
    assert "victim" in text
    for ref in (waiting[1], hung):
        with pytest.raises(ActorLost, match="victim"):
            engine.get(ref, timeout_s=3.0)
    for caller in callers:  # they are alive, and know of an earlier death, too
        assert engine.get(caller.error_of("echo", 1), timeout_s=3.0)[0] == ActorLost.__name__
    assert [actor.name for actor in engine.lost()] == ["victim"]


def test_the_death_of_a_caller_does_not_affect_the_callee(engine: Engine, world: World) -> None:
    counter, relay = engine.spawn(Counter), engine.spawn(Relay)
    victim = engine.spawn(Caller, counter)
    engine.get(victim.tell("add", range(10)), timeout_s=world.limit_s)
    engine.get(victim.ask("add", 10), timeout_s=world.limit_s)
    engine.get(victim.meet(relay), timeout_s=world.limit_s)
    hung = world.hang(relay)
    waits = victim.ask("echo", 1)
    assert engine.wait([waits], timeout_s=0.1) == ([], [waits])
    engine.kill(victim)
    with pytest.raises(ActorLost):
        engine.get(waits, timeout_s=3.0)
    assert engine.get(counter.history(), timeout_s=world.limit_s) == [0, *range(11)]
    assert engine.wait([hung], timeout_s=0.0) == ([], [hung])
    assert engine.get(engine.spawn(Caller, counter).ask("add", 11), timeout_s=world.limit_s) == [66]


def test_many_calls_leave_room_for_more(engine: Engine, world: World) -> None:
    counter = engine.spawn(Counter)
    callers = [engine.spawn(Caller, counter) for _ in range(2)]
    engine.get([caller.tell("add", [1] * 2000) for caller in callers], timeout_s=world.limit_s)
    assert engine.get(callers[0].ask("add", 0), timeout_s=world.limit_s)[0] <= 4000
    engine.get(callers[1].ask("add", 0), timeout_s=world.limit_s)
    assert sum(engine.get(counter.history(), timeout_s=world.limit_s)) == 4000


def test_an_actor_that_waits_for_itself_gets_an_error(engine: Engine, world: World) -> None:
    caller = engine.spawn(Caller)
    engine.get(caller.meet(caller), timeout_s=world.limit_s)
    with pytest.raises(RunError, match="would wait forever"):
        engine.get(caller.call_itself(), timeout_s=world.limit_s)
    for left in reversed(range(1000)):  # it is ready once the call has run
        try:
            assert engine.get(caller.kept(), timeout_s=world.limit_s) == [[caller.name]]
            break
        except RunError:
            assert left


def test_get_works_in_actors_only(engine: Engine, world: World) -> None:
    ref = engine.spawn(Relay).echo(1)
    with pytest.raises(ConfigurationError, match=r"engine\.get"):
        call.get(ref)
    assert engine.get(ref, timeout_s=world.limit_s) == 1


def test_a_handle_belongs_to_its_engine(engine: Engine, world: World) -> None:
    with world.engine() as other:
        caller = other.spawn(Caller)
        with pytest.raises(ConfigurationError, match="its own engine"):
            other.get(caller.ask_in({"here": [Box(engine.spawn(Relay))]}, "echo", 1), timeout_s=world.limit_s)


def test_calls_of_actors_leave_rows(engine: Engine, world: World) -> None:
    holder = engine.spawn(Holder, name="holder")
    caller = engine.spawn(Caller, holder, name="caller")
    engine.get(caller.ask("value"), timeout_s=world.limit_s)
    engine.get(caller.ask("keep", np.zeros(500, np.float32)), timeout_s=world.limit_s)
    engine.get(caller.error_of("no_such_method"), timeout_s=world.limit_s)
    rows = rows_of_calls(engine)
    channels: dict[str, list[Any]] = {"holder": [], "caller": []}
    for row in rows:
        channels[row.actor].append(row)
    value, keep, failed = channels["holder"]
    assert [row.call for row in channels["holder"]] == ["value", "keep", "no_such_method"]
    assert (value.bytes_out, keep.bytes_in, failed.error) == (4000, 2000, "AttributeError")
    assert {row.rank for row in channels["holder"]} == {0}
    for outer, inner in zip(channels["caller"], channels["holder"], strict=True):
        assert 0 <= outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s + 1e-9
        assert 0 < outer.wait_s <= outer.end_s - outer.start_s
    assert channels["caller"][0].bytes_in >= 4000  # what it received
    assert rows_of_calls(engine) == []
