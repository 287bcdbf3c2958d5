"""Every call leaves a correct row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chimera.core.engine import Engine
from chimera.core.trace import TraceRow
from conformance.actors import Faulty, Member, OddError, Relay
from conformance.message_members import Correspondent
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)


def rows_of_calls(engine: Engine) -> list[TraceRow]:
    """Return the rows of calls; an engine may add one for each constructor."""
    return [row for row in engine.trace() if row.call != "__init__"]


def test_a_row_for_every_call_and_each_only_once(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Relay, name=f"worker {rank}") for rank in range(3)]
    engine.get([actor.echo(n) for actor in actors for n in range(5)], timeout_s=world.limit_s)
    engine.get(actors[0].plus(1.0), timeout_s=world.limit_s)
    rows = rows_of_calls(engine)
    assert sorted((row.actor, row.rank, row.call) for row in rows) == sorted(
        [(f"worker {rank}", rank, "echo") for rank in range(3) for _ in range(5)] + [("worker 0", 0, "plus")]
    )
    assert rows_of_calls(engine) == []
    engine.get(actors[1].plus(1.0), timeout_s=world.limit_s)
    assert [(row.actor, row.call) for row in rows_of_calls(engine)] == [("worker 1", "plus")]


def test_times_are_ordered_and_calls_on_one_actor_do_not_overlap(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Relay) for _ in range(3)]
    value = engine.put(np.zeros(1000, np.float32))
    for _ in range(10):
        value = actors[0].total(*(actor.plus(value) for actor in actors))
    engine.get(value, timeout_s=world.limit_s)
    rows = rows_of_calls(engine)
    assert len(rows) == 40
    for rank in range(3):
        channel = [row for row in rows if row.rank == rank]
        for row in channel:
            assert 0 <= row.start_s <= row.end_s <= engine.now()
            assert row.transfer_s >= 0
            assert row.wait_s >= 0
        for before, after in itertools.pairwise(channel):  # oldest first
            assert before.end_s <= after.start_s + 1e-9


def test_a_call_starts_after_its_arguments(engine: Engine, world: World) -> None:
    first, second = engine.spawn(Relay), engine.spawn(Relay)
    engine.get(second.echo(first.plus(1.0)), timeout_s=world.limit_s)
    rows = {row.call: row for row in rows_of_calls(engine)}
    assert rows["plus"].end_s <= rows["echo"].start_s + 1e-9


def one_row(engine: Engine, call: str) -> TraceRow:
    (row,) = [row for row in rows_of_calls(engine) if row.call == call]
    return row


def test_bytes_are_those_of_the_arrays(engine: Engine, world: World) -> None:
    source, relay = engine.spawn(Relay), engine.spawn(Relay)
    array = np.zeros(1000, np.float32)
    engine.get(source.echo(array), timeout_s=world.limit_s)
    assert (row := one_row(engine, "echo")).bytes_in == row.bytes_out == 4000
    ref, put = source.echo(array), engine.put(array)
    engine.get(relay.total(ref, put, array[:1]), timeout_s=world.limit_s)
    row = one_row(engine, "total")
    assert (row.bytes_in, row.bytes_out) == (8004, 4000)


def test_bytes_of_several_results_are_those_of_all(engine: Engine, world: World) -> None:
    engine.get(engine.spawn(Relay).pieces(np.zeros(1001, np.float32), 2, returns=2), timeout_s=world.limit_s)
    assert one_row(engine, "pieces").bytes_out == 4004


def test_samples_are_counted_per_call(engine: Engine, world: World) -> None:
    relay = engine.spawn(Relay)
    engine.get([relay.samples(64), relay.samples(3), relay.echo(1)], timeout_s=world.limit_s)
    assert [(row.call, row.samples) for row in rows_of_calls(engine)] == [("samples", 64), ("samples", 3), ("echo", 0)]


def test_a_row_names_the_exception(engine: Engine, world: World) -> None:
    faulty = engine.spawn(Faulty)
    with pytest.raises(world.arriving(OddError)):
        engine.get(faulty.odd(1), timeout_s=world.limit_s)
    assert one_row(engine, "odd").error == world.arriving(OddError).__name__


def test_collectives_count_in_both_directions_and_report_waiting(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Member, rank) for rank in range(2)]
    group = engine.group(actors)
    engine.get([actor.inputs(1) for actor in actors], timeout_s=world.limit_s)  # they exist
    rows_of_calls(engine)
    early = actors[0].reduce(group, 1000, "sum")
    assert engine.wait([early], timeout_s=0.1) == ([], [early])
    engine.get([early, actors[1].reduce(group, 1000, "sum")], timeout_s=world.limit_s)
    waited, came_last = sorted(rows_of_calls(engine), key=lambda row: row.rank)
    assert min(waited.bytes_in, came_last.bytes_in) >= 4000
    assert min(waited.bytes_out, came_last.bytes_out) >= 4000 + 4000  # its result, and its vector for the group
    apart_s = came_last.start_s - waited.start_s  # 0.1, less the delay until the first call began
    assert apart_s / 2 < waited.wait_s <= waited.end_s - waited.start_s
    assert came_last.wait_s < waited.wait_s


def test_parts_of_a_call_have_rows_of_their_own(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Correspondent, rank) for rank in range(3)]
    size, steps = 1000, 20
    found: dict[str, list[TraceRow]] = {}
    for method in ("train", "train_in_parts"):
        group = engine.group(actors)
        served = actors[0].serve(group, size, steps, "shared")
        trained = [getattr(actor, method)(group, size, steps, "shared") for actor in actors[1:]]
        engine.get([served, *trained], timeout_s=world.limit_s)
        found[method] = [row for row in rows_of_calls(engine) if row.rank == 1]
    (whole,), parts = found["train"], found["train_in_parts"]
    assert [row.call for row in parts] == ["even step", "step"] * (steps // 2) + ["train_in_parts"]
    assert sum(row.bytes_out for row in parts) == whole.bytes_out == steps * 4 * size
    assert sum(row.bytes_in for row in parts) == whole.bytes_in
    assert [row.samples for row in parts] == [1] * steps + [100]
    for row in parts:
        assert row.wait_s <= row.end_s - row.start_s
    for before, after in itertools.pairwise(parts):
        assert before.start_s <= before.end_s <= after.start_s + 1e-9
    assert parts[-1].start_s == pytest.approx(parts[-2].end_s)
    assert parts[-1].end_s <= engine.now()


def test_a_message_to_several_members_counts_once_for_its_sender(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Correspondent, rank) for rank in range(3)]
    group, nbytes = engine.group(actors), 4 * 1000
    refs = [actors[0].serve(group, 1000, 5, "own"), *(actor.train(group, 1000, 5, "own") for actor in actors[1:])]
    engine.get(refs, timeout_s=world.limit_s)
    rows = {row.rank: row for row in rows_of_calls(engine)}
    assert rows[0].bytes_out == 5 * nbytes + nbytes  # and its result
    assert 2 * 5 * nbytes <= rows[0].bytes_in < 2 * 5 * nbytes + 100  # and its arguments
    for rank in (1, 2):
        assert rows[rank].bytes_out == 5 * nbytes
        assert 5 * nbytes <= rows[rank].bytes_in < 5 * nbytes + 100
