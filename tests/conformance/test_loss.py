"""The death of an actor becomes known, and nothing waits for the actor forever."""

from __future__ import annotations

import pytest

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from conformance.actors import Counter, Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)


def test_pending_refs_raise_actor_lost_after_a_kill(engine: Engine, world: World) -> None:
    victim, other = engine.spawn(Relay, name="victim"), engine.spawn(Relay)
    stands = victim.echo("stands")
    assert engine.get(stands, timeout_s=world.limit_s) == "stands"
    hung = world.hang(victim)
    queued = victim.echo(1)
    dependent = other.echo(other.echo(queued))
    engine.kill(victim)
    later = victim.echo(2)
    late_dependent = other.total(1, later)
    for ref in (hung, queued, dependent, later, late_dependent):
        with pytest.raises(ActorLost, match="victim"):
            engine.get(ref, timeout_s=world.limit_s)


def test_results_from_before_the_kill_remain(engine: Engine, world: World) -> None:
    victim, other = engine.spawn(Counter), engine.spawn(Relay)
    ref = victim.add(5)
    taken = other.echo(ref)
    assert engine.get([ref, taken], timeout_s=world.limit_s) == [5, 5]
    engine.kill(victim)
    assert engine.get([ref, taken], timeout_s=world.limit_s) == [5, 5]


@pytest.mark.sampled(3)
def test_other_actors_continue(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Counter) for _ in range(3)]
    engine.get([actor.add(1) for actor in actors], timeout_s=world.limit_s)
    engine.kill(actors[1])
    assert engine.get([actors[0].add(1), actors[2].add(1)], timeout_s=world.limit_s) == [2, 2]
    assert engine.get(engine.spawn(Counter, 7).add(1), timeout_s=world.limit_s) == 8


def test_lost_returns_dead_actors_in_the_order_of_their_deaths(engine: Engine, world: World) -> None:
    a, b, c = (engine.spawn(Relay, name=name) for name in "abc")
    engine.get([actor.echo(1) for actor in (a, b, c)], timeout_s=world.limit_s)
    assert engine.lost() == []
    engine.kill(c)
    assert [actor.name for actor in engine.lost()] == ["c"]
    engine.get(b.echo(1), timeout_s=world.limit_s)
    engine.kill(a)
    engine.kill(c)  # a second death changes nothing
    assert [actor.name for actor in engine.lost()] == ["c", "a"]


def test_a_lost_ref_counts_as_done(engine: Engine, world: World) -> None:
    victim, other = engine.spawn(Relay), engine.spawn(Relay)
    hung, fine = world.hang(victim), other.echo(1)
    engine.kill(victim)
    done, pending = engine.wait([hung, fine], count=2, timeout_s=world.limit_s)
    assert (set(done), pending) == ({hung, fine}, [])


def test_an_actor_can_be_killed_before_its_first_call(engine: Engine, world: World) -> None:
    actor = engine.spawn(Relay)
    engine.kill(actor)
    with pytest.raises(ActorLost):
        engine.get(actor.echo(1), timeout_s=world.limit_s)
