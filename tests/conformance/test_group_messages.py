"""Messages in groups: the right values in order, read-only, and no waiting for dead members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

from chimera.core.engine import Disturbance, Engine
from chimera.core.errors import ActorLost, ConfigurationError
from conformance.actors import Relay
from conformance.message_members import Correspondent
from conformance.worlds import World

Crew: TypeAlias = tuple[Engine, list[Any]]
KINDS = ["own", "shared", "encoded", "plain"]
LARGE = 10_000_000


def members(engine: Engine, count: int) -> tuple[list[Any], Any]:
    actors = [engine.spawn(Correspondent, rank, name=f"member {rank}") for rank in range(count)]
    return actors, engine.group(actors)


@pytest.fixture(scope="module")
def four(world: World) -> Iterator[Crew]:
    """Return four actors for groups of any size: each process costs time to start."""
    with world.engine() as engine:
        yield engine, members(engine, 4)[0]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_and_its_workers_answer_each_other(four: Crew, world: World, kind: str, count: int) -> None:
    engine, actors = four[0], four[1][:count]
    group = engine.group(actors)
    for size, steps in ((1, 5), (1000, 100), (70_001, 3)):
        weights = engine.get(actors[0].own(size, kind), timeout_s=world.limit_s).copy()
        served = actors[0].serve(group, size, steps, kind)
        trained = [actor.train(group, size, steps, kind) for actor in actors[1:]]
        engine.get(trained, timeout_s=world.limit_s)
        for _ in range(steps):
            sent = weights.copy()
            for rank in range(1, count):
                weights -= sent * np.float32(rank / 8)
        np.testing.assert_array_equal(engine.get(served, timeout_s=world.limit_s), weights)


def test_the_first_values_are_received_without_the_others(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:3]
    for early, late in ((1, 2), (2, 1)):
        group = engine.group(actors)
        taken = actors[0].take_first_twice(group)
        engine.get([actors[late].answer(group, True), actors[early].answer(group, False)], timeout_s=world.limit_s)
        assert engine.get(taken, timeout_s=world.limit_s) == [{early: early}, {late: late}]


@pytest.mark.parametrize("kind", KINDS)
def test_received_arrays_are_read_only(four: Crew, world: World, kind: str) -> None:
    engine, actors = four[0], four[1][:2]
    group = engine.group(actors)
    refs = [actors[1].write(group, kind), actors[0].send_one(group, kind)]
    assert engine.get(refs, timeout_s=world.limit_s) == ["refused", None]


def test_large_arrays_may_be_sent_in_both_directions_at_once(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:2]
    group = engine.group(actors)
    refs = [actor.exchange(group, LARGE) for actor in actors]
    assert engine.get(refs, timeout_s=world.limit_s) == [(2.0, True), (1.0, True)]


def test_an_actor_exchanges_messages_in_two_groups(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:3]
    one, two = engine.group(actors[:2]), engine.group([actors[0], actors[2]])
    refs = [actors[0].relay(one, two, 20), actors[1].ask(one, 20), actors[2].double(two, 20)]
    totals = np.cumsum([2.0 * (step + 1) for step in range(20)])
    assert engine.get(refs, timeout_s=world.limit_s) == [totals[-1], totals.tolist(), None]


def test_a_value_sent_before_a_call_ended_is_received_in_a_later_call(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:3]
    group = engine.group(actors)
    late = [actor.wait_for(group, 0) for actor in actors[1:]]
    engine.get(actors[0].send_one(group, "plain"), timeout_s=world.limit_s)
    notes = [note for (note, _) in engine.get(late, timeout_s=world.limit_s)]
    assert [note.step for note in notes] == [0, 0]


@pytest.mark.parametrize("count", [0, 2])
def test_a_number_of_values_that_cannot_arrive_is_rejected(four: Crew, world: World, count: int) -> None:
    engine, actors = four
    with pytest.raises(ConfigurationError, match=f"{count} values of 1 members"):
        engine.get(actors[2].receive(engine.group(actors[2:3]), [0], count), timeout_s=world.limit_s)


@pytest.mark.parametrize("size", [1, 200_000])
def test_a_value_that_was_sent_survives_its_sender(engine: Engine, world: World, size: int) -> None:
    actors, group = members(engine, 4)
    value = np.arange(size, dtype=np.float32)
    waiting = [actor.wait_twice(group) for actor in actors[1:]]
    ended = actors[0].send_and_end(group, world.real_processes, value)
    for found, error, text in engine.get(waiting, timeout_s=world.limit_s):
        np.testing.assert_array_equal(found, value)
        assert error == "ActorLost"
        assert "member 0" in text
    with pytest.raises(ActorLost, match="member 0"):
        engine.get(ended, timeout_s=world.limit_s)


def test_no_member_waits_for_a_value_that_was_not_sent(engine: Engine, world: World) -> None:
    actors, group = members(engine, 3)
    waiting = [actor.wait_for(group, 0) for actor in actors[1:]]
    actors[0].send_and_end(group, world.real_processes, None)
    for ref in waiting:
        with pytest.raises(ActorLost, match="member 0"):
            engine.get(ref, timeout_s=world.limit_s)


def test_the_death_of_any_member_ends_a_wait(engine: Engine, world: World) -> None:
    """A server that lost a worker may end its call, and then sends nothing to the others."""
    actors, group = members(engine, 3)
    engine.get([actor.own(1, "own") for actor in actors], timeout_s=world.limit_s)
    waiting = [actors[0].wait_for(group, 2), actors[1].wait_for(group, 0)]
    assert engine.wait(waiting, timeout_s=0.1) == ([], waiting)
    engine.kill(actors[2])
    for ref in waiting:
        with pytest.raises(ActorLost, match="member 2"):
            engine.get(ref, timeout_s=world.limit_s)
    survivors = engine.group(actors[:2])
    served = actors[0].serve(survivors, 10, 3, "shared"), actors[1].train(survivors, 10, 3, "shared")
    assert engine.get(served, timeout_s=world.limit_s)[0].shape == (10,)


def test_other_calls_continue_while_members_wait(engine: Engine, world: World) -> None:
    actors, group = members(engine, 2)
    waiting = actors[1].wait_for(group, 0)
    other = engine.spawn(Relay)
    assert engine.get(other.echo("continues"), timeout_s=world.limit_s) == "continues"
    assert engine.wait([waiting], timeout_s=0.1) == ([], [waiting])
    engine.get(actors[0].send_one(group, "plain"), timeout_s=world.limit_s)
    note, _ = engine.get(waiting, timeout_s=world.limit_s)
    assert note.step == 0


@pytest.mark.long
def test_messages_of_a_hanging_member_arrive_after_its_hang(engine: Engine, world: World) -> None:
    actors, group = members(engine, 3)
    engine.get([actor.own(1, "own") for actor in actors], timeout_s=world.limit_s)
    began_s = engine.now()
    engine.disturb(actors[1], Disturbance("hang", for_s=1.5))
    refs = [actors[0].serve(group, 100, 3, "shared"), *(actor.train(group, 100, 3, "shared") for actor in actors[1:])]
    assert engine.wait(refs, timeout_s=0.3)[0] == []
    engine.get(refs, timeout_s=world.limit_s)
    assert engine.now() - began_s > 1.49
    assert engine.lost() == []
