"""Order, refs between actors, several results, names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from chimera.core.engine import Engine, Resources
from chimera.core.errors import ConfigurationError
from conformance.actors import Counter, Holder, Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)


@pytest.mark.sampled(3)
def test_an_actor_runs_its_calls_in_the_order_of_issue(engine: Engine, world: World) -> None:
    counter = engine.spawn(Counter, 100)
    refs = [counter.add(number) for number in range(50)]
    assert engine.get(refs, timeout_s=world.limit_s) == [100 + n * (n + 1) // 2 for n in range(50)]
    assert engine.get(counter.history(), timeout_s=world.limit_s) == [100, *range(50)]


@pytest.mark.sampled(3)
def test_a_call_with_a_delayed_argument_runs_before_later_calls(engine: Engine, world: World) -> None:
    first, second = engine.spawn(Counter), engine.spawn(Counter)
    for number in range(20):
        second.add(first.add(number))
        second.add(-1)
    expected = [0]
    for number in range(20):
        expected += [number * (number + 1) // 2, -1]
    assert engine.get(second.history(), timeout_s=world.limit_s) == expected


def test_a_chain_over_three_actors(engine: Engine, world: World) -> None:
    a, b, c = (engine.spawn(Relay) for _ in range(3))
    value = engine.put(np.zeros(1000, np.float32))
    for actor in (a, b, c, a, c, b):
        value = actor.plus(value, 1.0)
    np.testing.assert_array_equal(engine.get(value, timeout_s=world.limit_s), np.full(1000, 6, np.float32))


def test_refs_are_resolved_among_positions_and_keywords_and_constructor_arguments(engine: Engine, world: World) -> None:
    relay = engine.spawn(Relay)
    two = relay.plus(1.0)
    holder = engine.spawn(Holder, engine.put(np.ones(3, np.float32)))
    total = relay.total(holder.value(), engine.put(np.full(3, 4, np.float32)), scale=two)
    np.testing.assert_array_equal(engine.get(total, timeout_s=world.limit_s), np.full(3, 10, np.float32))


def test_a_constructor_takes_the_ref_of_another_actors_result(engine: Engine, world: World) -> None:
    holder = engine.spawn(Holder, engine.spawn(Relay).plus(np.ones(4, np.float32)))
    np.testing.assert_array_equal(engine.get(holder.value(), timeout_s=world.limit_s), np.full(4, 2, np.float32))


def test_several_results_are_several_refs(engine: Engine, world: World) -> None:
    relay, others = engine.spawn(Relay), [engine.spawn(Relay) for _ in range(3)]
    whole = np.arange(10, dtype=np.float32)
    pieces = relay.pieces(whole, 3, returns=3)
    assert isinstance(pieces, list)
    back = [other.echo(piece) for other, piece in zip(others, pieces, strict=True)]
    np.testing.assert_array_equal(np.concatenate(engine.get(back, timeout_s=world.limit_s)), whole)


def test_returns_1_gives_a_list_of_one_ref(engine: Engine, world: World) -> None:
    (piece,) = engine.spawn(Relay).pieces(np.arange(4, dtype=np.float32), 1, returns=1)
    np.testing.assert_array_equal(engine.get(piece, timeout_s=world.limit_s), np.arange(4))


@pytest.mark.parametrize(("got", "asked"), [(2, 3), (3, 2)])
def test_a_wrong_number_of_results_is_an_error_of_each_ref(engine: Engine, world: World, got: int, asked: int) -> None:
    refs = engine.spawn(Relay).pieces(np.zeros(6, np.float32), got, returns=asked)
    for ref in refs:
        with pytest.raises(ValueError, match=f"returns={asked}"):
            engine.get(ref, timeout_s=world.limit_s)


def test_results_that_cannot_be_counted_are_an_error(engine: Engine, world: World) -> None:
    (first, _) = engine.spawn(Relay).echo(5, returns=2)
    with pytest.raises((ValueError, TypeError)):
        engine.get(first, timeout_s=world.limit_s)


@pytest.fixture(scope="module")
def mirror(world: World) -> Iterator[Mirror]:
    """Return one actor for many tests of values: each process costs time to start."""
    with world.engine() as engine:
        relay = engine.spawn(Relay)
        yield Mirror(engine, relay, world.limit_s)


@dataclass
class Mirror:
    engine: Engine
    relay: Any
    limit_s: float

    def there_and_back(self, value: Any) -> Any:
        """Return a value after two passes through an actor, the second from a result of it."""
        return self.engine.get(self.relay.echo(self.relay.echo(value)), timeout_s=self.limit_s)


VALUES = [None, True, 3, 2.5, "text", b"bytes", (1, "a"), [1, [2.0]], {"a": [1], "b": None}, {1, 2}, np.float32(1.5)]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_arrive_unchanged(mirror: Mirror, value: Any) -> None:
    there_and_back = mirror.there_and_back(value)
    assert there_and_back == value
    assert type(there_and_back) is type(value)
    assert mirror.there_and_back(mirror.engine.put(value)) == value


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "uint8", "complex64", "U5"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7, 5), (70_001,)], ids=str)
def test_arrays_of_any_type_and_shape_arrive_unchanged(mirror: Mirror, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(dtype)
    for sent in (array, array.T, array[..., ::2] if shape else array):
        back = mirror.there_and_back(sent)
        assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
        np.testing.assert_array_equal(back, sent)


def test_arrays_inside_containers_and_objects_arrive(engine: Engine, world: World) -> None:
    relay = engine.spawn(Relay)
    value = {"parts": [np.arange(3), (np.ones(2, np.float32), "x")], "rest": slice(1, 2)}
    back = engine.get(relay.echo(engine.put(value)), timeout_s=world.limit_s)
    np.testing.assert_array_equal(back["parts"][0], np.arange(3))
    np.testing.assert_array_equal(back["parts"][1][0], np.ones(2))
    assert (back["parts"][1][1], back["rest"]) == ("x", slice(1, 2))


def test_local_classes_and_lambdas_can_be_sent(engine: Engine, world: World) -> None:
    base = 5

    class Local:
        def apply(self, function: Any, value: int) -> int:
            return int(function(value)) + base

    actor = engine.spawn(Local)
    assert engine.get(actor.apply(lambda x: x * base, 2), timeout_s=world.limit_s) == 15


def test_a_value_that_cannot_be_sent_is_one_clear_error(engine: Engine) -> None:
    def generate() -> Any:
        yield 1

    relay = engine.spawn(Relay)
    with pytest.raises(ConfigurationError, match="generator"):
        engine.put(generate())
    with pytest.raises(ConfigurationError, match="generator"):
        relay.echo(generate())


def test_actor_names_are_the_given_ones_or_unique(engine: Engine) -> None:
    named = engine.spawn(Relay, name="worker 3", resources=Resources(threads=1))
    unnamed = [engine.spawn(Relay) for _ in range(3)]
    assert named.name == "worker 3"
    assert len({actor.name for actor in [named, *unnamed]}) == 4


def test_reserved_room_is_used_by_the_actors_it_was_reserved_for(engine: Engine, world: World) -> None:
    engine.reserve([Resources()] * 2)
    actors = [engine.spawn(Relay) for _ in range(3)]  # one more than was reserved
    assert engine.get([actor.echo(1) for actor in actors], timeout_s=world.limit_s) == [1] * 3


def test_get_returns_values_in_the_order_of_refs(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Relay) for _ in range(3)]
    refs = [actor.echo(rank) for rank, actor in enumerate(actors)]
    assert engine.get([refs[2], refs[0], refs[1], refs[0]], timeout_s=world.limit_s) == [2, 0, 1, 0]
    assert engine.get([], timeout_s=world.limit_s) == []


@pytest.mark.sampled(3)
def test_wait_divides_refs_into_done_and_pending(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Relay) for _ in range(4)]
    refs = [actor.echo(rank) for rank, actor in enumerate(actors)]
    done, pending = engine.wait(refs, count=4, timeout_s=world.limit_s)
    assert (set(done), pending) == (set(refs), [])
    done, pending = engine.wait(refs, count=2, timeout_s=world.limit_s)
    assert set(done) == set(refs)  # every ref known to be done, not only the requested number
    hung = world.hang(actors[0])
    done, pending = engine.wait([hung, *refs[1:]], count=3, timeout_s=world.limit_s)
    assert (set(done), pending) == (set(refs[1:]), [hung])


def test_done_refs_are_in_the_order_of_completion(engine: Engine, world: World) -> None:
    slow, fast = engine.spawn(Relay), engine.spawn(Relay)
    chain = slow.plus(1.0)
    early = fast.echo("early")
    engine.wait([early], timeout_s=world.limit_s)
    late = slow.plus(fast.plus(chain))
    done, _ = engine.wait([late, early], count=2, timeout_s=world.limit_s)
    assert done == [early, late]


def test_time_increases(engine: Engine, world: World) -> None:
    relay, times = engine.spawn(Relay), [engine.now()]
    for _ in range(5):
        engine.get(relay.echo(1), timeout_s=world.limit_s)
        times.append(engine.now())
    assert times[0] >= 0
    assert times == sorted(set(times))
