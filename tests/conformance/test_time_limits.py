"""`wait` and `get` with a time limit return by it, even if actors hang."""

from __future__ import annotations

import time

import pytest

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, TimeLimitError
from conformance.actors import Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)

SLACK_S = 1.0


def test_wait_returns_by_its_time_limit_while_an_actor_hangs(engine: Engine, world: World) -> None:
    hanging, other = engine.spawn(Relay), engine.spawn(Relay)
    engine.get([hanging.echo(1), other.echo(1)], timeout_s=world.limit_s)
    hung, fine = world.hang(hanging), other.echo(2)
    began_s, really_s = engine.now(), time.monotonic()
    done, pending = engine.wait([hung, fine], count=2, timeout_s=0.2)
    assert (done, pending) == ([fine], [hung])
    assert 0.2 <= engine.now() - began_s + 1e-9 < 0.2 + SLACK_S
    assert time.monotonic() - really_s < 0.2 + SLACK_S


def test_wait_returns_early_when_enough_is_done(engine: Engine, world: World) -> None:
    hanging, other = engine.spawn(Relay), engine.spawn(Relay)
    hung, fine = world.hang(hanging), other.echo(2)
    began_s = engine.now()
    assert engine.wait([hung, fine], count=1, timeout_s=world.limit_s) == ([fine], [hung])
    assert engine.now() - began_s < world.limit_s


def test_a_time_limit_of_zero_returns_at_once(engine: Engine, world: World) -> None:
    relay = engine.spawn(Relay)
    fine = relay.echo(1)
    engine.get(fine, timeout_s=world.limit_s)
    hung = world.hang(relay)
    assert engine.wait([hung, fine], count=2, timeout_s=0.0) == ([fine], [hung])


def test_get_raises_at_its_time_limit_and_the_call_continues(engine: Engine, world: World) -> None:
    hanging = engine.spawn(Relay)
    hung = world.hang(hanging)
    for _ in range(2):
        began_s, really_s = engine.now(), time.monotonic()
        with pytest.raises(TimeLimitError):
            engine.get(hung, timeout_s=0.1)
        assert 0.1 <= engine.now() - began_s + 1e-9 < 0.1 + SLACK_S
        assert time.monotonic() - really_s < 0.1 + SLACK_S
    assert engine.lost() == []


def test_get_of_many_has_one_limit_for_all(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Relay) for _ in range(3)]
    fine, *hung = [actors[0].echo(1), *(world.hang(actor) for actor in actors[1:])]
    began_s = engine.now()
    with pytest.raises(TimeLimitError):
        engine.get([fine, *hung], timeout_s=0.2)
    assert engine.now() - began_s < 0.2 + SLACK_S


def test_a_hung_actor_can_be_killed(engine: Engine, world: World) -> None:
    hanging = engine.spawn(Relay)
    hung = world.hang(hanging)
    engine.wait([hung], timeout_s=0.1)
    engine.kill(hanging)
    with pytest.raises(ActorLost):
        engine.get(hung, timeout_s=world.limit_s)


def test_calls_after_a_hung_one_and_dependent_refs_stay_pending(engine: Engine, world: World) -> None:
    hanging, other = engine.spawn(Relay), engine.spawn(Relay)
    hung = world.hang(hanging)
    refs = [hanging.echo(1), other.echo(hung)]
    assert engine.wait(refs, count=1, timeout_s=0.1) == ([], refs)
