"""Disturbances other than death: an actor that hangs, is slow or is cut off is not lost; silent actors are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chimera.core.engine import Disturbance, Engine
from chimera.core.errors import ActorLost
from conformance.actors import Counter, Member, Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)

AFTER_S = 2.0
NAMED_WITHIN_S = AFTER_S + 1.5
LOOK_S = 0.1


def silent_names(engine: Engine, pending: Sequence[Any], after_s: float, for_s: float) -> list[list[str]]:
    """Return the silent actors at each check, for some seconds; ``pending`` are refs that stay pending."""
    until_s, names = engine.now() + for_s, []
    while engine.now() < until_s:
        engine.wait(pending, timeout_s=LOOK_S)
        names.append([actor.name for actor in engine.silent(after_s)])
    return names


def spawned(engine: Engine, world: World, count: int = 2) -> list[Any]:
    """Return relays that have started."""
    relays = [engine.spawn(Relay, name=f"relay {i}") for i in range(count)]
    engine.get([relay.echo(1) for relay in relays], timeout_s=world.limit_s)
    return relays


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", ["hang", "cut off"])
def test_a_hanging_or_cut_off_actor_is_silent_and_not_lost(engine: Engine, world: World, what: Any) -> None:
    victim, other = spawned(engine, world)
    engine.disturb(victim, Disturbance(what))
    began_s = engine.now()
    nothing = victim.echo(1)
    while not (silent := engine.silent(AFTER_S)) and engine.now() - began_s < world.limit_s:
        assert engine.wait([nothing], timeout_s=LOOK_S) == ([], [nothing])
    assert silent == [victim]
    assert AFTER_S - 1.0 < engine.now() - began_s < NAMED_WITHIN_S
    assert engine.get(other.echo(2), timeout_s=world.limit_s) == 2
    assert engine.lost() == []


@pytest.mark.takes("it waits for 4 s, longer than the call lasts")
def test_a_running_call_does_not_end_while_its_actor_hangs(engine: Engine, world: World) -> None:
    victim, _ = spawned(engine, world)
    under_way = world.compute(victim, 3.0)
    engine.wait([under_way], timeout_s=LOOK_S)
    engine.disturb(victim, Disturbance("hang"))
    assert engine.wait([under_way], timeout_s=4.0) == ([], [under_way])


def test_a_waiting_actor_is_not_silent(engine: Engine, world: World) -> None:
    hung, strange, acquainted = (engine.spawn(Member, rank, name=f"member {rank}") for rank in range(3))
    spawned(engine, world, 1)  # an idle actor
    dependent = engine.spawn(Relay)
    met, unmet = engine.group([hung, acquainted]), engine.group([hung, strange])
    others = engine.group([strange, acquainted])  # so that no first import of a library takes time below
    meetings = [hung.meet(met), acquainted.meet(met), acquainted.meet(others), strange.meet(others)]
    engine.get([*meetings, dependent.echo(1)], timeout_s=world.limit_s)
    engine.disturb(hung, Disturbance("hang"))
    first = hung.meet(met)
    pending = [first, acquainted.meet(met), strange.meet(unmet), hung.meet(unmet), dependent.echo(first)]
    names = silent_names(engine, pending, AFTER_S, for_s=2 * AFTER_S)
    assert names[-1] == ["member 0"]
    assert all(found in ([], ["member 0"]) for found in names)


def test_a_hanging_actor_can_be_killed(engine: Engine, world: World) -> None:
    victim, other = spawned(engine, world)
    engine.disturb(victim, Disturbance("hang"))
    refs = [victim.echo(1), victim.echo(2)]
    refs.append(other.echo(refs[0]))
    engine.wait(refs, timeout_s=LOOK_S)
    engine.kill(victim)
    for ref in (*refs, victim.echo(3)):
        with pytest.raises(ActorLost):
            engine.get(ref, timeout_s=world.limit_s)
    assert engine.lost() == [victim]
    assert silent_names(engine, [world.hang(other)], 10 * AFTER_S, for_s=LOOK_S) == [[]]
    engine.disturb(victim, Disturbance("slow"))  # dead actors are not disturbed


@pytest.mark.parametrize("what", ["hang", "cut off"])
def test_a_disturbance_with_a_duration_ends_and_loses_nothing(engine: Engine, world: World, what: Any) -> None:
    counter = engine.spawn(Counter)
    refs = [counter.add(1)]
    engine.get(refs, timeout_s=world.limit_s)
    began_s = engine.now()
    engine.disturb(counter, Disturbance(what, for_s=1.0))
    refs += [counter.add(number) for number in (2, 3)]
    assert engine.wait(refs[1:], timeout_s=0.3)[0] == []
    assert engine.get(refs, timeout_s=world.limit_s) == [1, 3, 6]
    assert engine.now() - began_s > 0.99
    assert engine.get(counter.history(), timeout_s=world.limit_s) == [0, 1, 2, 3]
    assert engine.lost() == []


def test_a_slowed_call_takes_longer_and_ends(engine: Engine, world: World) -> None:
    relay, _ = spawned(engine, world)
    engine.disturb(relay, Disturbance("slow", factor=4.0))
    began_s = engine.now()
    engine.get(world.compute(relay, 0.5), timeout_s=world.limit_s)
    assert engine.now() - began_s > 1.0
    assert engine.silent(10 * AFTER_S) == engine.lost() == []


def test_slowness_ends_too(engine: Engine, world: World) -> None:
    relay, _ = spawned(engine, world)
    engine.disturb(relay, Disturbance("slow", factor=100.0, for_s=0.5))
    lasted_s = []
    for _ in range(2):
        began_s = engine.now()
        engine.get(world.compute(relay, 0.2), timeout_s=world.limit_s)
        lasted_s.append(engine.now() - began_s)
    assert lasted_s[0] > 0.5
    assert lasted_s[1] < 100 * 0.2 / 2


def test_a_later_disturbance_replaces_an_earlier_one(engine: Engine, world: World) -> None:
    relay, _ = spawned(engine, world)
    engine.disturb(relay, Disturbance("hang"))
    ref = relay.echo(1)
    assert engine.wait([ref], timeout_s=LOOK_S) == ([], [ref])
    engine.disturb(relay, Disturbance("slow", factor=1.0))
    assert engine.get(ref, timeout_s=world.limit_s) == 1


def test_a_group_waits_for_a_hanging_member_and_continues(engine: Engine, world: World) -> None:
    members = [engine.spawn(Member, rank) for rank in range(3)]
    group = engine.group(members)
    engine.get([member.meet(group) for member in members], timeout_s=world.limit_s)
    began_s = engine.now()
    engine.disturb(members[1], Disturbance("hang", for_s=1.5))
    refs = [member.reduce(group, 1000, "sum") for member in members]
    assert engine.wait(refs, timeout_s=0.3)[0] == []
    arrays = [array.tobytes() for array, _ in engine.get(refs, timeout_s=world.limit_s)]
    assert engine.now() - began_s > 1.49
    assert len(set(arrays)) == 1
    assert engine.lost() == []


def test_an_actor_can_be_disturbed_before_its_first_call(engine: Engine, world: World) -> None:
    relay = engine.spawn(Relay)
    engine.disturb(relay, Disturbance("hang", for_s=1.0))
    assert engine.get(relay.echo(1), timeout_s=world.limit_s) == 1
