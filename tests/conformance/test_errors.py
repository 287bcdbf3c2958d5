"""An actor's exception arrives with its class and origin, and spreads to calls that depend on it."""

from __future__ import annotations

import pytest

from chimera.core.engine import Engine
from chimera.core.errors import ActorError
from conformance.actors import Faulty, OddError, Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)


def test_an_exception_keeps_its_class_and_has_the_remote_traceback(engine: Engine, world: World) -> None:
    faulty = engine.spawn(Faulty, name="worker 5")
    with pytest.raises(OddError) as caught:
        engine.get(faulty.odd(42, detail="remotely"), timeout_s=world.limit_s)
    assert (caught.value.code, caught.value.detail) == (42, "remotely")
    cause = caught.value.__cause__
    assert isinstance(cause, ActorError)
    for said in ("worker 5", "odd", "raise OddError(code, detail)", "actors.py"):
        assert said in str(cause)


def test_an_actor_continues_after_an_exception(engine: Engine, world: World) -> None:
    faulty = engine.spawn(Faulty)
    bad, good = faulty.odd(1), faulty.fine()
    assert engine.get(good, timeout_s=world.limit_s) == "fine"
    for _ in range(2):  # the same, however often it is fetched
        with pytest.raises(world.arriving(OddError)):
            engine.get(bad, timeout_s=world.limit_s)
    assert engine.lost() == []


@pytest.mark.sampled(3)
def test_dependent_calls_raise_the_exception_of_their_argument_and_do_not_run(engine: Engine, world: World) -> None:
    class Watch:
        def __init__(self) -> None:
            self.calls = 0

        def take(self, *_: object) -> int:
            self.calls += 1
            return self.calls

    faulty, watch, relay = engine.spawn(Faulty), engine.spawn(Watch), engine.spawn(Relay)
    direct = watch.take(1, faulty.odd(3))
    indirect = relay.echo(relay.echo(direct))
    for ref in (direct, indirect):
        with pytest.raises(world.arriving(OddError)) as caught:
            engine.get(ref, timeout_s=world.limit_s)
        if not world.hides_errors:
            assert caught.value.code == 3
    assert engine.get(watch.take(), timeout_s=world.limit_s) == 1


def test_all_results_of_a_failed_call_raise(engine: Engine, world: World) -> None:
    for ref in engine.spawn(Faulty).odd(4, returns=3):
        with pytest.raises(world.arriving(OddError)):
            engine.get(ref, timeout_s=world.limit_s)


def test_a_failed_ref_counts_as_done(engine: Engine, world: World) -> None:
    ref = engine.spawn(Faulty).odd(1)
    assert engine.wait([ref], timeout_s=world.limit_s) == ([ref], [])


def test_the_first_call_raises_the_exception_of_the_constructor(engine: Engine, world: World) -> None:
    broken, relay = engine.spawn(Faulty, broken=True), engine.spawn(Relay)
    first = broken.fine()
    dependent = relay.echo(first)
    for ref in (first, dependent):
        with pytest.raises(
            world.arriving(OddError), match="OddError in" if world.hides_errors else "constructor"
        ) as caught:
            engine.get(ref, timeout_s=world.limit_s)
        assert isinstance(caught.value.__cause__, ActorError)


def test_an_unknown_method_is_an_attribute_error(engine: Engine, world: World) -> None:
    with pytest.raises(world.arriving(AttributeError), match="no_such_method"):
        engine.get(engine.spawn(Relay).no_such_method(), timeout_s=world.limit_s)


def test_an_exception_that_cannot_be_sent_arrives_as_actor_error(engine: Engine, world: World) -> None:
    with pytest.raises(world.arriving(ActorError), match="StubbornError"):
        engine.get(engine.spawn(Faulty).stubborn(), timeout_s=world.limit_s)


def test_a_result_that_cannot_be_sent_is_an_error_of_its_call_only(engine: Engine, world: World) -> None:
    class Generous:
        def generate(self) -> object:
            return (number for number in range(3))

    generous = engine.spawn(Generous)
    with pytest.raises(Exception, match="generator"):
        engine.get(generous.generate(), timeout_s=world.limit_s)
    assert engine.lost() == []
