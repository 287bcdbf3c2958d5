"""The Ray engine on a cluster that another process runs: nodes that die, missing room, shipped code."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import chimera
from chimera.core.engine import Resources
from chimera.core.errors import ActorLost, TimeLimitError
from chimera.engines.ray import Ray
from chimera.engines.ray.session import HEALTH_CHECKS
from chimera.training.progress.callback import Callback, Event, Progress
from conformance.actors import Member, Party, Relay
from conformance.message_members import Correspondent

pytestmark = pytest.mark.long

KNOWN_WITHIN_S = 3.0
AT_ONCE_S = 5.0  # otherwise it waits for a minute
LIMIT_S = 60.0


class Watched(Member):
    """An actor that reports whether it has imported torch, which takes a second."""

    def has_torch(self) -> bool:
        return "torch" in sys.modules


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 4, "object_store_memory": 200 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "_system_config": dict(HEALTH_CHECKS)})
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def joined(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Stay in the cluster, for the engines of the tests to share."""
    folder = tmp_path_factory.mktemp("beside")
    (folder / "beside_the_experiment.py").write_text("class Mine:\n    def where(self):\n        return __file__\n")
    sys.path.insert(0, str(folder))
    with Ray(address=cluster.address):
        yield cluster
    sys.path.remove(str(folder))


@pytest.fixture(autouse=True)
def alone(joined: Any) -> None:
    """Wait until the last test's actors and nodes are gone: Ray detects that a little later."""
    import ray

    until(lambda: ray.cluster_resources()["CPU"] == ray.available_resources().get("CPU") == 4)


@pytest.fixture
def engine(joined: Any) -> Iterator[Ray]:
    with Ray() as engine:
        yield engine


@pytest.fixture
def add_node(joined: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that adds a node, until the end of the test at most."""
    added = []

    def add(**resources: float) -> Any:
        own = {"CHIMERA_MACHINE": f"added {len(added)}"}  # otherwise its actors would share the driver's memory
        added.append(joined.add_node(num_cpus=4, object_store_memory=200 << 20, resources=resources, env_vars=own))
        return added[-1]

    yield add
    for node in added:
        if node in joined.list_all_nodes():
            joined.remove_node(node)


@pytest.fixture
def second_node(add_node: Callable[..., Any]) -> Any:
    return add_node(second=4)


def on_second(**custom: float) -> Resources:
    return Resources(custom={"second": 1.0, **custom})


def test_a_killed_node_is_known_within_its_time_and_the_rest_goes_on(
    engine: Ray, joined: Any, second_node: Any
) -> None:
    away = [engine.spawn(Relay, name=f"away {i}", resources=on_second()) for i in range(2)]
    here = engine.spawn(Relay, name="here")
    large = away[0].echo(np.ones(500_000, np.float32))
    engine.get([actor.echo(1) for actor in (*away, here)], timeout_s=LIMIT_S)
    engine.wait([large], timeout_s=LIMIT_S)
    hung = away[1].wait_for_ever(0)
    dependent = here.echo(hung)
    joined.remove_node(second_node, allow_graceful=False)
    died_s = time.monotonic()
    for ref in (hung, dependent, large, here.plus(large)):
        with pytest.raises(ActorLost):
            engine.get(ref, timeout_s=LIMIT_S)
    assert time.monotonic() - died_s < KNOWN_WITHIN_S
    with pytest.raises(ActorLost, match="away 0"):
        engine.get(away[0].echo(2), timeout_s=LIMIT_S)
    assert {actor.name for actor in engine.lost()} == {"away 0", "away 1"}
    assert engine.get(here.echo("continues"), timeout_s=LIMIT_S) == "continues"
    assert engine.get(engine.spawn(Relay).echo("new"), timeout_s=LIMIT_S) == "new"


def test_members_of_a_group_learn_of_the_death_of_a_node(engine: Ray, joined: Any, second_node: Any) -> None:
    actors = [engine.spawn(Member, rank, resources=on_second() if rank == 2 else None) for rank in range(3)]
    group = engine.group(actors)
    arrays = engine.get([actor.repeat(group, 2, 1000) for actor in actors], timeout_s=LIMIT_S)
    assert len({array.tobytes() for array in arrays}) == 3  # each adds its rank after the last meeting
    waiting = [actor.meet(group) for actor in actors[:2]]
    joined.remove_node(second_node, allow_graceful=False)
    died_s = time.monotonic()
    for ref in waiting:
        with pytest.raises(ActorLost):
            engine.get(ref, timeout_s=LIMIT_S)
    assert time.monotonic() - died_s < KNOWN_WITHIN_S
    survivors = engine.group(actors[:2])
    assert engine.get([actor.meet(survivors) for actor in actors[:2]], timeout_s=LIMIT_S) == [2, 2]


def test_members_that_share_memory_and_those_that_do_not_get_the_same_bits(engine: Ray, second_node: Any) -> None:
    here = [engine.spawn(Watched, rank) for rank in range(3)]
    away = engine.spawn(Watched, 2, resources=on_second())
    for near in (here[1:], here):
        found = []
        for members in (near, [*near[:-1], away]):
            group = engine.group(members)
            calls = [member.reduce(group, 1000, "mean") for member in members]
            calls += [member.reduce(group, 70_001, "sum", shared=True) for member in members]
            calls += [member.spread(group, 70_001, 1) for member in members]
            found.append([result.tobytes() for result, _ in engine.get(calls, timeout_s=LIMIT_S)])
        assert found[0] == found[1]


def test_messages_reach_members_that_share_memory_and_those_that_do_not(engine: Ray, second_node: Any) -> None:
    here = [engine.spawn(Correspondent, rank) for rank in range(3)]
    away = engine.spawn(Correspondent, 2, resources=on_second())
    found = []
    for members in (here, [*here[:2], away]):
        group = engine.group(members)
        served = members[0].serve(group, 70_001, 5, "encoded")
        trained = [member.train(group, 70_001, 5, "encoded") for member in members[1:]]
        engine.get(trained, timeout_s=LIMIT_S)
        found.append(engine.get(served, timeout_s=LIMIT_S).tobytes())
    assert found[0] == found[1]


def test_members_learn_of_the_death_of_a_node_while_they_wait_for_messages(
    engine: Ray, joined: Any, second_node: Any
) -> None:
    actors = [engine.spawn(Correspondent, rank, resources=on_second() if rank == 2 else None) for rank in range(3)]
    group = engine.group(actors)
    refs = [actors[0].serve(group, 10, 1, "own"), *(actor.train(group, 10, 1, "own") for actor in actors[1:])]
    engine.get(refs, timeout_s=LIMIT_S)
    waiting = [actors[0].wait_for(group, 2), actors[1].wait_for(group, 0)]
    joined.remove_node(second_node, allow_graceful=False)
    died_s = time.monotonic()
    for ref in waiting:
        with pytest.raises(ActorLost):
            engine.get(ref, timeout_s=LIMIT_S)
    assert time.monotonic() - died_s < KNOWN_WITHIN_S


def test_groups_on_processors_need_no_torch(engine: Ray, second_node: Any) -> None:
    here, away = [engine.spawn(Watched, rank) for rank in range(2)], engine.spawn(Watched, 2, resources=on_second())
    for members in (here, [here[0], away]):
        group = engine.group(members)
        engine.get([member.meet(group) for member in members], timeout_s=LIMIT_S)
        assert not any(engine.get([member.has_torch() for member in members], timeout_s=LIMIT_S))


def test_large_values_go_from_node_to_node(engine: Ray, second_node: Any) -> None:
    away, here = engine.spawn(Relay, resources=on_second()), engine.spawn(Relay)
    value = engine.put(np.zeros(300_000, np.float32))
    for actor in (away, here, away, here):
        value = actor.plus(value)
    np.testing.assert_array_equal(engine.get(value, timeout_s=LIMIT_S), np.full(300_000, 4, np.float32))


def test_values_of_shared_memory_reach_other_machines_and_come_back(engine: Ray, second_node: Any) -> None:
    near, other = (engine.spawn(Party) for _ in range(2))
    engine.get([near.pid(), other.pid()], timeout_s=LIMIT_S)
    shared = near.random(5)
    assert engine.get(other.shares(shared), timeout_s=LIMIT_S)
    far = engine.spawn(Party, resources=on_second())
    there = [far.plus_one(shared), far.plus_one(value=near.random(6)), far.plus_one(far.random(7))]
    back = [near.plus_one(value) for value in there]
    for values, number in ((there, 1), (back, 2)):
        for value, seed in zip(engine.get(values, timeout_s=LIMIT_S), (5, 6, 7), strict=True):
            np.testing.assert_array_equal(value, plus_ones(Party().random(seed), number))
    assert not engine.get(far.shares(shared), timeout_s=LIMIT_S)


def plus_ones(array: Any, count: int) -> Any:
    for _ in range(count):
        array = Party().plus_one(array)
    return array


def test_beside_an_actor_on_another_machine_values_are_rays(engine: Ray, second_node: Any) -> None:
    near, other, far = engine.spawn(Party), engine.spawn(Party), engine.spawn(Party, resources=on_second())
    engine.get([actor.pid() for actor in (near, other, far)], timeout_s=LIMIT_S)
    until(lambda: not engine.get(other.shares(near.random(1)), timeout_s=LIMIT_S))
    values = [near.random(2), far.random(2), other.random(2)]
    for actor in (near, other, far):
        assert not any(engine.get([actor.shares(value) for value in values], timeout_s=LIMIT_S))
    for value in engine.get(values, timeout_s=LIMIT_S):
        np.testing.assert_array_equal(value, Party().random(2))
    engine.kill(far)
    until(lambda: engine.get(other.shares(near.random(1)), timeout_s=LIMIT_S))


def test_room_that_cannot_be_had_says_what_was_asked_and_what_is_free(
    joined: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Ray(reserve_timeout_s=2.5) as engine:
        began_s = time.monotonic()
        with pytest.raises(
            TimeLimitError, match=r"3 actors within 2.5 s: requested 6 CPUs, .*; free 4 of 4 CPUs, 0 of 0 GPUs"
        ):
            engine.reserve([Resources(threads=2)] * 3)
        assert time.monotonic() - began_s >= 2.5
        assert "waiting for room for 3 actors: requested 6 CPUs" in caplog.text
        assert caplog.records[-1].levelno == logging.WARNING
        engine.reserve([Resources(threads=2)] * 2)  # nothing of the first is kept
        actors = [engine.spawn(Relay, resources=Resources(threads=2)) for _ in range(2)]
        assert engine.get([actor.echo(1) for actor in actors], timeout_s=LIMIT_S) == [1, 1]
        engine.kill(actors[0])
        replacement = engine.spawn(Relay, resources=Resources(threads=2))  # takes the place of the dead actor
        assert engine.get(replacement.echo(2), timeout_s=LIMIT_S) == 2


def test_what_was_reserved_for_actors_that_are_all_dead_is_there_for_the_next_run(joined: Any) -> None:
    with Ray(reserve_timeout_s=AT_ONCE_S) as engine:
        for needs in ([Resources()] * 3, [Resources(threads=4)], [Resources(threads=2)] * 2):  # no two fit at a time
            engine.reserve(needs)
            actors = [engine.spawn(Relay, resources=each) for each in needs]
            assert engine.get([actor.echo(1) for actor in actors], timeout_s=LIMIT_S) == [1] * len(needs)
            for actor in actors[1:]:
                engine.kill(actor)
            with pytest.raises(TimeLimitError):
                engine.reserve(
                    [Resources(threads=4)], timeout_s=0
                )  # one of them is alive, or its place is kept for another
            engine.kill(actors[0])


def test_who_waits_for_room_does_not_fill_the_memory_of_rays_head(cluster: Any, joined: Any) -> None:
    head = psutil.Process(cluster.head_node.all_processes["gcs_server"][0].process.pid)
    before_bytes = head.memory_info().rss
    with Ray(reserve_timeout_s=6.0) as engine, pytest.raises(TimeLimitError):
        engine.reserve([Resources()] * 5)
    assert head.memory_info().rss - before_bytes < 20 << 20


def test_an_actor_that_finds_no_room_is_an_error_and_no_endless_wait(joined: Any) -> None:
    with Ray(reserve_timeout_s=6.0) as engine:  # longer than a process may take to start
        fine, too_large = engine.spawn(Relay), engine.spawn(Relay, name="too large", resources=Resources(gpus=1.0))
        assert engine.get(fine.echo(1), timeout_s=LIMIT_S) == 1
        for use in (engine.get, engine.wait):
            with pytest.raises(TimeLimitError, match=r"too large within 6 s: requested 1 CPUs, 1 GPUs, .*0 of 0 GPUs"):
                use([too_large.echo(1)])


def test_whether_there_is_room_is_known_at_once(joined: Any, caplog: pytest.LogCaptureFixture) -> None:
    one, two = [Resources()], [Resources(threads=2)]
    with Ray() as engine:
        engine.reserve(one * 2)
        engine.reserve(two, timeout_s=0)
        actors = [engine.spawn(Relay, resources=needs) for needs in (*one * 2, *two)]
        engine.get([actor.echo(1) for actor in actors], timeout_s=LIMIT_S)
        for needs in (one, two):
            with pytest.raises(TimeLimitError, match=r"1 actors .*: requested [12] CPUs, .*; free 0 of 4 CPUs"):
                at_once(engine, needs)
        assert caplog.records == []
        engine.kill(actors[2])
        at_once(engine, two)
        with pytest.raises(TimeLimitError):
            at_once(engine, one)  # the place of another kind is no place
        ended = actors[0].die()
        engine.wait([ended], timeout_s=LIMIT_S)
        at_once(engine, one)
        actors = [engine.spawn(Relay, resources=needs) for needs in (*one, *two)]
        assert engine.get([actor.echo(2) for actor in actors], timeout_s=LIMIT_S) == [2, 2]


def at_once(engine: Ray, resources: list[Resources]) -> None:
    """Reserve without waiting."""
    began_s = time.monotonic()
    try:
        engine.reserve(resources, timeout_s=0)
    finally:
        assert time.monotonic() - began_s < AT_ONCE_S


def test_actors_that_fit_on_no_single_node_have_no_room(engine: Ray, second_node: Any) -> None:
    engine.reserve([Resources(threads=3)] * 2)
    with pytest.raises(TimeLimitError, match=r"cannot hold 1 actors now: requested 2 CPUs, .*; free 2 of 8 CPUs"):
        at_once(engine, [Resources(threads=2)])
    at_once(engine, [Resources()] * 2)


def test_a_place_on_a_node_that_died_counts_again_once_ray_has_moved_it(
    engine: Ray, joined: Any, second_node: Any, add_node: Callable[..., Any]
) -> None:
    engine.reserve([on_second()])
    victim = engine.spawn(Relay, name="away", resources=on_second())
    engine.get(victim.echo(1), timeout_s=LIMIT_S)
    joined.remove_node(second_node, allow_graceful=False)
    with pytest.raises(ActorLost):
        engine.get(victim.wait_for_ever(0), timeout_s=LIMIT_S)
    with pytest.raises(TimeLimitError, match="0 of 0 second"):
        at_once(engine, [on_second()])
    add_node(second=1)
    until(lambda: has_room(engine, on_second()))
    replacement = engine.spawn(Relay, resources=on_second())
    assert engine.get(replacement.echo(2), timeout_s=LIMIT_S) == 2
    assert not has_room(engine, on_second())  # it took the place itself, and no other one


@pytest.mark.parametrize("groups", [1, 2], ids=lambda groups: f"{groups} reservations")
def test_a_place_that_stands_is_taken_before_one_whose_node_died(joined: Any, second_node: Any, groups: int) -> None:
    four = Resources(threads=4)  # a node's all
    with Ray(placement="spread") as engine:
        for _ in range(groups):
            engine.reserve([four] * (2 // groups))
        actors = [engine.spawn(Relay, name=f"relay {i}", resources=four) for i in range(2)]
        engine.get([actor.echo(1) for actor in actors], timeout_s=LIMIT_S)
        joined.remove_node(second_node, allow_graceful=False)
        until(lambda: len(engine.lost()) == 1)
        assert not has_room(engine, four)
        (other,) = (actor for actor in actors if actor not in engine.lost())
        engine.kill(other)
        at_once(engine, [four])
        assert engine.get(engine.spawn(Relay, resources=four).echo(2), timeout_s=LIMIT_S) == 2


def has_room(engine: Ray, resources: Resources) -> bool:
    try:
        at_once(engine, [resources])
    except TimeLimitError:
        return False
    return True


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class EnoughError(Exception):
    """Ends a run."""


class Growing(Callback):
    """A callback that adds a node after the first rounds, and ends the run some rounds after two workers have joined."""

    def __init__(self, add_node: Callable[[], Any]) -> None:
        self._add_node, self._grown = add_node, False
        self.told: set[tuple[str, str]] = set()

    def on_event(self, event: Event) -> None:
        assert self._grown
        self.told.add((event.event, event.actor))

    def on_progress(self, progress: Progress) -> None:
        if not self._grown:
            self._grown = True
            self._add_node()
        elif len(self.told) == 2:
            assert progress.workers == {f"worker {i}": "running" for i in range(4)}
            raise EnoughError


@pytest.mark.slow
def test_workers_join_a_run_when_a_node_joins_the_cluster(
    engine: Ray, add_node: Callable[[], Any], tmp_path: Path
) -> None:
    growing = Growing(add_node)
    with pytest.raises(EnoughError):
        chimera.train(
            {"name": "mlp", "hidden": [16]},
            "digits",
            engine=engine,
            workers=2,
            max_workers=4,
            strategy={"name": "parameter-server", "shards": 2},
            batch_size=16,
            max_seconds=5 * LIMIT_S,
            log_every=20,
            callbacks=[growing],
            out=tmp_path / "run",
        )
    assert growing.told == {("worker joined", "worker 2"), ("worker joined", "worker 3")}


def test_only_what_the_engine_started_is_ended(joined: Any) -> None:
    import ray

    class Bystander:
        def ping(self) -> str:
            return "still here"

    bystander = ray.remote(num_cpus=0)(Bystander).options(name="bystander").remote()
    with Ray() as engine:
        engine.reserve([Resources()] * 2)
        actors = [engine.spawn(Member, rank) for rank in range(2)]
        group = engine.group(actors)
        engine.get([actor.meet(group) for actor in actors], timeout_s=LIMIT_S)
    assert ray.is_initialized()
    assert ray.get(bystander.ping.remote()) == "still here"
    assert ray.util.list_named_actors() == ["bystander"]
    until(lambda: ray.available_resources().get("CPU") == 4)
    assert all(group["state"] == "REMOVED" for group in ray.util.placement_group_table().values())
    ray.kill(bystander)


def test_code_beside_the_experiment_is_shipped(engine: Ray) -> None:
    import beside_the_experiment

    actor = engine.spawn(beside_the_experiment.Mine)
    assert engine.get(actor.where(), timeout_s=LIMIT_S) != beside_the_experiment.__file__
    assert Path(beside_the_experiment.__file__).is_file()


def test_threads_are_those_asked_for(engine: Ray) -> None:
    class Thready:
        def threads(self) -> int:
            import torch

            return int(torch.get_num_threads())

    actors = [engine.spawn(Thready, resources=Resources(threads=n)) for n in (1, 2)]
    assert engine.get([actor.threads() for actor in actors], timeout_s=LIMIT_S) == [1, 2]
