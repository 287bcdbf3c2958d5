"""Arrays on the driver's machine go through memory that its actors share, elsewhere through Ray's store: the same values."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.errors import ActorLost
from chimera.engines.ray import Ray
from conformance.actors import LARGE, Party, lies_in_shared_memory
from conformance.message_members import Correspondent

pytestmark = pytest.mark.long

LIMIT_S = 60.0
NBYTES = 4 * LARGE


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    with Ray():
        yield


@pytest.fixture
def engine(session: None) -> Iterator[Ray]:
    with Ray() as engine:
        yield engine


def parties(engine: Ray, count: int) -> list[Any]:
    """Return this many actors that have started."""
    actors = [engine.spawn(Party) for _ in range(count)]
    engine.get([actor.pid() for actor in actors], timeout_s=LIMIT_S)
    return actors


def file_bytes(engine: Ray) -> int:
    """Return the memory that the shared file uses."""
    place = engine._shared.place
    assert place is not None
    return os.fstat(place.fd).st_blocks * 512


def test_a_value_for_several_is_in_memory_once(engine: Ray) -> None:
    maker, *readers = [parties(engine, 1)[0] for _ in range(3)]
    before = file_bytes(engine)
    value = maker.random(1)
    assert engine.get([reader.shares(value) for reader in readers], timeout_s=LIMIT_S) == [True, True]
    fetched = engine.get(value, timeout_s=LIMIT_S)
    assert lies_in_shared_memory(fetched)
    assert not fetched.flags.writeable
    np.testing.assert_array_equal(fetched, Party().random(1))
    assert NBYTES <= file_bytes(engine) - before < 1.5 * NBYTES


def test_messages_and_keyword_arguments_go_there_too_and_small_values_do_not(engine: Ray) -> None:
    maker, reader = parties(engine, 2)
    message = engine.get(maker.message(3), timeout_s=LIMIT_S)
    assert (message.codec, message.size, dict(message.meta)) == ("none", LARGE, {"scale": 2.0})
    np.testing.assert_array_equal(message.arrays[0], Party().random(3))
    assert lies_in_shared_memory(message.arrays[0])
    assert engine.get(reader.shares(value=maker.random(4)), timeout_s=LIMIT_S)
    assert not engine.get(reader.shares(reader.plus_one(np.zeros(5, np.float32))), timeout_s=LIMIT_S)


def test_a_value_outlives_its_maker(engine: Ray) -> None:
    maker, reader = parties(engine, 2)
    value = maker.filled(7)
    engine.wait([value], timeout_s=LIMIT_S)
    os.kill(engine.get(maker.pid(), timeout_s=LIMIT_S), signal.SIGKILL)
    with pytest.raises(ActorLost):
        engine.get(maker.pid(), timeout_s=LIMIT_S)
    assert engine.get(reader.all_are(7, value), timeout_s=LIMIT_S)
    fetched = engine.get(value, timeout_s=LIMIT_S)
    del value
    assert len(engine.lost()) == 1
    np.testing.assert_array_equal(fetched, Party().filled(7))
    before = file_bytes(engine)
    del fetched
    deadline_s = time.monotonic() + LIMIT_S
    while before - file_bytes(engine) < NBYTES:
        assert time.monotonic() < deadline_s
        engine.lost()


def test_what_is_kept_is_never_written_over_and_the_rest_is_used_again(engine: Ray) -> None:
    maker, keeper, reader = parties(engine, 3)
    first = maker.filled(-1)
    engine.get(keeper.keep(first, -1), timeout_s=LIMIT_S)
    mine = engine.get(maker.filled(-2), timeout_s=LIMIT_S)
    del first
    before = file_bytes(engine)
    for number in range(60):
        value = maker.filled(number)
        assert engine.get(reader.all_are(number, value, value), timeout_s=LIMIT_S)
    assert engine.get(keeper.is_kept(), timeout_s=LIMIT_S)
    assert np.all(mine == -2)
    assert file_bytes(engine) - before < 6 * NBYTES


@pytest.mark.parametrize("end", ["kill", "sigkill"])
def test_what_the_dead_have_read_is_used_again(engine: Ray, end: str) -> None:
    maker, keeper = parties(engine, 2)
    for number in range(4):
        engine.get(keeper.keep(maker.filled(number), number), timeout_s=LIMIT_S)
    before = file_bytes(engine)
    for number in range(6):
        (victim,) = parties(engine, 1)
        engine.get(victim.keep(maker.filled(number), number), timeout_s=LIMIT_S)
        if end == "kill":
            engine.kill(victim)
        else:
            os.kill(engine.get(victim.pid(), timeout_s=LIMIT_S), signal.SIGKILL)
    assert file_bytes(engine) - before < 4 * NBYTES


def test_messages_of_the_dead_stay_readable_while_their_group_is_in_use(engine: Ray) -> None:
    actors = [engine.spawn(Correspondent, rank) for rank in range(2)]
    group = engine.group(actors)
    engine.get([actors[0].serve(group, 10, 1, "own"), actors[1].train(group, 10, 1, "own")], timeout_s=LIMIT_S)
    value = np.arange(LARGE, dtype=np.float32)
    engine.wait([actors[0].send_and_end(group, True, value)], timeout_s=LIMIT_S)
    assert engine.lost() == [actors[0]]
    engine._registry.check_for_deaths(at_once=True)
    np.testing.assert_array_equal(engine.get(actors[1].wait_for(group, 0), timeout_s=LIMIT_S), value)
    before = file_bytes(engine)
    del group
    engine._registry.check_for_deaths(at_once=True)
    assert before - file_bytes(engine) >= NBYTES


def test_calls_that_ray_cannot_carry_out_hold_nothing(engine: Ray) -> None:
    maker, reader, victim = parties(engine, 3)
    lost = victim.filled(0)
    engine.kill(victim)
    gone = victim.filled(1)
    before = file_bytes(engine)
    for number in range(20):
        refused, unfit = reader.all_are(number, maker.filled(number), gone), reader.unfit(maker.filled(number))
        with pytest.raises(ActorLost):
            engine.get(refused, timeout_s=LIMIT_S)
        with pytest.raises(Exception, match="pickle"):
            engine.get(unfit, timeout_s=LIMIT_S)
        engine.trace()
        del refused, unfit
        value = maker.filled(-number)
        assert engine.get(reader.all_are(-number, value), timeout_s=LIMIT_S)
    assert file_bytes(engine) - before < 8 * NBYTES
    del lost


ACTIONS = {"make": 0.2, "pass": 0.3, "check": 0.2, "keep": 0.1, "look": 0.1, "fetch": 0.09, "kill": 0.01}


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_a_value_is_what_it_was_made_as_or_lost(engine: Ray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actors, asked = parties(engine, 4), []
    values = deque([(actors[0].filled(0), 0)], maxlen=12)
    for turn in range(300):
        first, second = rng.choice(4, 2, replace=False)
        actor, (ref, number) = actors[first], values[rng.integers(len(values))]
        match rng.choice(list(ACTIONS), p=list(ACTIONS.values())):
            case "make":
                values.append((actor.filled(turn), turn))
            case "pass":
                values.append((actors[second].plus_one(actor.plus_one(ref)), number + 2))
            case "check":
                asked.append(actor.all_are(number, ref, ref))
            case "keep":
                asked.append(actor.keep(ref, number))
            case "look":
                asked.append(actor.is_kept())
            case "fetch":
                check(engine, ref, number)
            case "kill":
                engine.kill(actor)
                actors[first] = engine.spawn(Party)
    for ref, number in (*values, *((answer, True) for answer in asked)):
        check(engine, ref, number)
    assert file_bytes(engine) < 100 * NBYTES  # of 500 values


def check(engine: Ray, ref: Any, expected: Any) -> None:
    """Check that a value is right, unless it is lost."""
    with contextlib.suppress(ActorLost):
        assert np.all(engine.get(ref, timeout_s=LIMIT_S) == expected)


def test_a_run_whose_servers_die_ends_with_the_bits_of_one_left_in_peace(engine: Ray, tmp_path: Path) -> None:
    runs = [
        chimera.train(
            {"name": "mlp", "hidden": [512, 512]},  # 600 kB a shard
            "digits",
            engine=engine,
            workers=2,
            strategy={"name": "parameter-server", "shards": 2},
            optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
            rounds=60,
            snapshot_every=20,
            faults=faults,
            out=tmp_path / str(len(faults)),
        )
        for faults in ([], ["kill server 0 at step 25", "kill server 1 at step 45"])
    ]
    assert [event.event for event in runs[1].events].count("server lost") == 2
    assert file_bytes(engine) > 1_000_000
    np.testing.assert_array_equal(*(run.trained.parameters() for run in runs))
