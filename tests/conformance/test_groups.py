"""Collectives: the right values, the same bits on all members, and no waiting for dead members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ConfigurationError
from conformance.actors import Member, Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)

Crew: TypeAlias = tuple[Engine, list[Any]]
SIZES = [0, 1, 2, 3, 5, 63, 64, 65, 1000, 10_007]


def members(engine: Engine, count: int) -> tuple[list[Any], Any]:
    actors = [engine.spawn(Member, rank, name=f"worker {rank}") for rank in range(count)]
    return actors, engine.group(actors)


def same_bits(arrays: list[np.ndarray]) -> bool:
    return all(array.tobytes() == arrays[0].tobytes() for array in arrays)


@pytest.fixture(scope="module")
def four(world: World) -> Iterator[Crew]:
    """Return four actors for groups of any size: each process costs time to start."""
    with world.engine() as engine:
        yield engine, members(engine, 4)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("op", ["default", "mean", "sum"])
def test_all_reduce_gives_all_members_the_same_bits_of_the_right_values(
    four: Crew, world: World, count: int, op: str
) -> None:
    engine, actors = four[0], four[1][:count]
    group = engine.group(actors)
    for size in SIZES:
        for shared in (False, True):
            results = engine.get([a.reduce(group, size, op, shared) for a in actors], timeout_s=world.limit_s)
            inputs = engine.get([a.inputs(size) for a in actors], timeout_s=world.limit_s)
            expected = np.sum(inputs, axis=0, dtype=np.float64) / (1 if op == "sum" else count)
            arrays = [array for array, _ in results]
            assert all(in_place for _, in_place in results)
            assert same_bits(arrays)
            np.testing.assert_allclose(arrays[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_broadcast_gives_all_members_the_array_of_the_root(four: Crew, world: World, count: int) -> None:
    engine, actors = four[0], four[1][:count]
    group = engine.group(actors)
    for size in (0, 1, 1001):
        for root in range(count):
            results = engine.get([a.spread(group, size, root) for a in actors], timeout_s=world.limit_s)
            expected = engine.get(actors[root].inputs(size), timeout_s=world.limit_s)
            assert all(in_place for _, in_place in results)
            for array, _ in results:
                np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("count", [2, 3])
def test_vectors_of_unequal_sizes_are_rejected_and_the_members_survive(four: Crew, world: World, count: int) -> None:
    engine, actors = four[0], four[1][:count]
    group = engine.group(actors)
    for call in ("reduce", "spread"):
        more = ("sum",) if call == "reduce" else (0,)
        refs = [getattr(actor, call)(group, 10_000 * rank, *more) for rank, actor in enumerate(actors)]
        for ref in refs:
            with pytest.raises(ConfigurationError, match=r"the members of a group .*10000"):
                engine.get(ref, timeout_s=world.limit_s)
    assert engine.get([actor.meet(group) for actor in actors], timeout_s=world.limit_s) == [count] * count
    (first, _), *_ = engine.get([actor.reduce(group, 7, "sum") for actor in actors], timeout_s=world.limit_s)
    inputs = engine.get([actor.inputs(7) for actor in actors], timeout_s=world.limit_s)
    np.testing.assert_allclose(first, np.sum(inputs, axis=0), rtol=1e-5, atol=1e-6)


def test_many_collectives_within_one_call(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:3]
    group = engine.group(actors)
    results = engine.get([a.repeat(group, 100, 257) for a in actors], timeout_s=world.limit_s)
    arrays = engine.get([a.inputs(257) for a in actors], timeout_s=world.limit_s)
    for turn in range(100):
        mean = np.mean(arrays, axis=0)
        arrays = [mean + rank + turn for rank in range(3)]
    for result, expected in zip(results, arrays, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_many_calls_with_one_collective_each_issued_ahead(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:3]
    group = engine.group(actors)
    refs = [actor.meet(group) for _ in range(100) for actor in actors]
    assert engine.get(refs, timeout_s=world.limit_s) == [3] * 300


def test_members_may_be_called_in_any_order(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:3]
    group = engine.group(actors)
    refs = {rank: actors[rank].reduce(group, 10, "sum") for rank in (2, 0, 1)}
    arrays = [array for array, _ in engine.get([refs[rank] for rank in range(3)], timeout_s=world.limit_s)]
    assert same_bits(arrays)


def test_an_actor_in_several_groups(four: Crew, world: World) -> None:
    engine, actors = four
    everyone = engine.group(actors)
    pairs = [engine.group(actors[:2]), engine.group(actors[2:])]
    assert [everyone.size, pairs[0].size] == [4, 2]
    refs = [actor.pair_then_all(pairs[rank // 2], everyone) for rank, actor in enumerate(actors)]
    assert engine.get(refs, timeout_s=world.limit_s) == [12.0] * 4  # 2 (0 + 1) + 2 (2 + 3)


def test_results_of_collectives_feed_other_actors(four: Crew, world: World) -> None:
    engine, actors = four[0], four[1][:2]
    group = engine.group(actors)
    refs = [actor.repeat(group, 2, 8) for actor in actors]
    total = engine.spawn(Relay).total(*refs)
    values = engine.get(refs, timeout_s=world.limit_s)
    np.testing.assert_allclose(engine.get(total, timeout_s=world.limit_s), values[0] + values[1], rtol=1e-6)


def test_other_calls_continue_while_members_wait(engine: Engine, world: World) -> None:
    actors, group = members(engine, 3)
    waiting = [actor.meet(group) for actor in actors[:2]]
    other = engine.spawn(Relay)
    assert engine.get(other.echo("continues"), timeout_s=world.limit_s) == "continues"
    assert engine.wait(waiting, timeout_s=0.1) == ([], waiting)
    last = actors[2].meet(group)
    assert engine.get([*waiting, last], timeout_s=world.limit_s) == [3, 3, 3]


def test_the_death_of_a_member_ends_the_wait_of_the_others(engine: Engine, world: World) -> None:
    actors, group = members(engine, 3)
    assert engine.get([actor.meet(group) for actor in actors], timeout_s=world.limit_s) == [3, 3, 3]
    waiting = [actor.meet(group) for actor in actors[:2]]
    assert engine.wait(waiting, timeout_s=0.1) == ([], waiting)
    engine.kill(actors[2])
    for ref in waiting:
        with pytest.raises(ActorLost, match="worker 2"):
            engine.get(ref, timeout_s=world.limit_s)
    with pytest.raises(ActorLost):
        engine.get(actors[0].meet(group), timeout_s=world.limit_s)
    assert [actor.name for actor in engine.lost()] == ["worker 2"]
    survivors = engine.group(actors[:2])
    assert engine.get([actor.meet(survivors) for actor in actors[:2]], timeout_s=world.limit_s) == [2, 2]


def test_the_death_of_a_waiting_member_ends_the_wait_of_the_others(engine: Engine, world: World) -> None:
    actors, group = members(engine, 3)
    waiting = [actor.meet(group) for actor in actors[:2]]
    engine.wait(waiting, timeout_s=0.1)
    engine.kill(actors[0])
    for ref in waiting:
        with pytest.raises(ActorLost, match="worker 0"):
            engine.get(ref, timeout_s=world.limit_s)
    assert engine.get(actors[1].inputs(1), timeout_s=world.limit_s).shape == (1,)
