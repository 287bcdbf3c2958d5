"""A value that was returned or put never changes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from chimera.core.engine import Engine
from chimera.core.message import Encoded
from conformance.actors import Holder, Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)

SIZES = [1, 1000, 100_000]


@pytest.mark.parametrize("size", SIZES)
def test_a_returned_value_does_not_change_with_the_actors_own(engine: Engine, world: World, size: int) -> None:
    holder, relay = engine.spawn(Holder, np.ones(size, np.float32)), engine.spawn(Relay)
    before = holder.value()
    got = engine.get(before, timeout_s=world.limit_s)
    holder.fill(7.0)
    after = holder.value()
    assert engine.get(relay.echo(after), timeout_s=world.limit_s)[0] == 7
    assert engine.get(relay.echo(before), timeout_s=world.limit_s)[0] == 1
    assert got[0] == 1


@pytest.mark.parametrize("size", SIZES)
def test_a_receiver_cannot_write_into_an_argument(engine: Engine, world: World, size: int) -> None:
    holder, source = engine.spawn(Holder), engine.spawn(Holder, np.ones(size, np.float32))
    put, made, inline = engine.put(np.ones(size, np.float32)), source.value(), np.ones(size, np.float32)
    for value in (put, made, inline):
        assert engine.get(holder.overwrite(value, 5.0), timeout_s=world.limit_s) == "refused"
    for ref in (put, made):
        np.testing.assert_array_equal(engine.get(ref, timeout_s=world.limit_s), np.ones(size))


@pytest.mark.parametrize("size", SIZES)
def test_a_put_or_passed_value_does_not_change_with_the_drivers_own(engine: Engine, world: World, size: int) -> None:
    holder, array = engine.spawn(Holder), np.ones(size, np.float32)
    owner = engine.spawn(Holder, array)
    ref = engine.put(array)
    holder.keep(array)
    given = holder.kept_sum()
    array[...] = 9.0
    assert engine.get(given, timeout_s=world.limit_s) == size
    np.testing.assert_array_equal(engine.get(ref, timeout_s=world.limit_s), np.ones(size))
    np.testing.assert_array_equal(engine.get(owner.value(), timeout_s=world.limit_s), np.ones(size))


def test_the_driver_cannot_change_a_fetched_value(engine: Engine, world: World) -> None:
    ref = engine.spawn(Holder, np.ones(5000, np.float32)).value()
    first = engine.get(ref, timeout_s=world.limit_s)
    with contextlib.suppress(ValueError):
        first[...] = 3.0
    np.testing.assert_array_equal(engine.get(ref, timeout_s=world.limit_s), np.ones(5000))


def test_a_value_that_an_actor_keeps_survives_many_other_values(engine: Engine, world: World) -> None:
    source, keeper = engine.spawn(Holder, np.ones(10_000, np.float32)), engine.spawn(Holder)
    keeper.keep(source.value())
    for number in range(2, 20):
        source.fill(number)
        engine.get(source.value(), timeout_s=world.limit_s)
    assert engine.get(keeper.kept_sum(), timeout_s=world.limit_s) == 10_000


def test_each_receiver_has_its_own_containers(engine: Engine, world: World) -> None:
    class Greedy:
        def grow(self, items: list[int], table: dict[str, int]) -> int:
            items.append(9)
            table["more"] = 1
            return len(items) + len(table)

    items, table = engine.put([1, 2]), engine.put({"a": 1})
    for actor in (engine.spawn(Greedy), engine.spawn(Greedy)):
        assert [engine.get(actor.grow(items, table), timeout_s=world.limit_s) for _ in range(2)] == [5, 5]
    assert engine.get([items, table], timeout_s=world.limit_s) == [[1, 2], {"a": 1}]


def test_the_arrays_of_an_encoded_message_do_not_change(engine: Engine, world: World) -> None:
    class Sender:
        def __init__(self) -> None:
            self.memory = np.ones(500, np.int8)

        def message(self) -> Encoded:
            return Encoded("some-codec", 500, (self.memory,), {"scale": 2.0})

        def change(self) -> None:
            self.memory[...] = 3

    sender, relay = engine.spawn(Sender), engine.spawn(Relay)
    message = sender.message()
    sender.change()
    for ref in (message, relay.echo(message)):
        encoded = engine.get(ref, timeout_s=world.limit_s)
        assert (encoded.codec, encoded.size, dict(encoded.meta)) == ("some-codec", 500, {"scale": 2.0})
        np.testing.assert_array_equal(encoded.arrays[0], np.ones(500))
