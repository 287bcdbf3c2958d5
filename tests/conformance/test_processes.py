"""Engines whose actors are processes: the processes exist, and can be killed from outside."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from chimera.core.engine import Disturbance, Engine
from chimera.core.errors import ActorLost
from conformance.actors import Caller, Member, Relay
from conformance.test_disturbance import silent_names
from conformance.test_lifetime import assert_scene_leaves_nothing
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)

KNOWN_WITHIN_S = 3.0


def test_each_actor_has_its_own_process(engine: Engine, world: World) -> None:
    pids = engine.get([engine.spawn(Relay).pid() for _ in range(3)], timeout_s=world.limit_s)
    assert len({*pids, os.getpid()}) == 4


def test_sigkill_during_a_call_is_detected_soon(engine: Engine, world: World) -> None:
    victim, other = engine.spawn(Relay, name="victim"), engine.spawn(Relay)
    pid = engine.get(victim.pid(), timeout_s=world.limit_s)
    hung = world.hang(victim)
    dependent = other.echo(hung)
    os.kill(pid, signal.SIGKILL)
    for ref in (hung, dependent, victim.echo(1)):
        with pytest.raises(ActorLost, match="victim"):
            engine.get(ref, timeout_s=KNOWN_WITHIN_S)
    assert [actor.name for actor in engine.lost()] == ["victim"]


def test_sigkill_of_an_idle_actor_is_detected_soon(engine: Engine, world: World) -> None:
    victim = engine.spawn(Relay, name="victim")
    os.kill(engine.get(victim.pid(), timeout_s=world.limit_s), signal.SIGKILL)
    with pytest.raises(ActorLost):
        engine.get(victim.echo(1), timeout_s=KNOWN_WITHIN_S)


def test_a_waiting_actor_detects_sigkill_of_its_callee_soon(engine: Engine, world: World) -> None:
    victim = engine.spawn(Relay, name="victim")
    caller = engine.spawn(Caller, victim)
    (pid,) = engine.get(caller.ask("pid"), timeout_s=world.limit_s)
    world.hang(victim)
    waiting = caller.error_of("echo", 1)
    assert engine.wait([waiting], timeout_s=0.1) == ([], [waiting])
    os.kill(pid, signal.SIGKILL)
    kind, text, _ = engine.get(waiting, timeout_s=KNOWN_WITHIN_S)
    assert kind == "ActorLost"
    assert "victim" in text


def test_an_actor_that_exits_is_lost(engine: Engine, world: World) -> None:
    victim = engine.spawn(Relay)
    engine.get(victim.echo(1), timeout_s=world.limit_s)
    with pytest.raises(ActorLost):
        engine.get(victim.die(), timeout_s=KNOWN_WITHIN_S)


def test_the_death_of_a_member_between_collectives_ends_the_wait_of_the_others(engine: Engine, world: World) -> None:
    actors = [engine.spawn(Member, rank) for rank in range(3)]
    group = engine.group(actors)
    engine.get([actor.meet(group) for actor in actors], timeout_s=world.limit_s)
    refs = [actors[0].meet_twice(group), actors[1].meet_twice(group), actors[2].die_before_meeting(group)]
    for ref in refs:
        with pytest.raises(ActorLost):
            engine.get(ref, timeout_s=KNOWN_WITHIN_S)
    survivors = engine.group(actors[:2])
    assert engine.get([actor.meet(survivors) for actor in actors[:2]], timeout_s=world.limit_s) == [2, 2]


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_stopped_process_ends_as_soon_as_any_other(world: World, end: str) -> None:
    with world.engine() as engine:
        relays = [engine.spawn(Relay) for _ in range(2)]
        processes = [psutil.Process(pid) for pid in engine.get([relay.pid() for relay in relays], world.limit_s)]
        engine.disturb(relays[0], Disturbance("hang"))
        engine.disturb(relays[1], Disturbance("slow", factor=100))
        if end == "kill":
            for relay in relays:
                engine.kill(relay)
            assert psutil.wait_procs(processes, timeout=KNOWN_WITHIN_S)[1] == []
    assert psutil.wait_procs(processes, timeout=KNOWN_WITHIN_S)[1] == []


@pytest.mark.takes("it observes actors for 5 s")
def test_a_long_computation_is_silent_unless_it_declares_its_work(engine: Engine, world: World) -> None:
    quiet, declaring = (engine.spawn(Relay, name=name) for name in ("quiet", "declaring"))
    engine.get([quiet.echo(1), declaring.echo(1)], timeout_s=world.limit_s)
    refs = [quiet.compute_for_ever(declaring=False), declaring.compute_for_ever(declaring=True)]
    names = silent_names(engine, refs, after_s=2.0, for_s=5.0)
    assert names[-1] == ["quiet"]
    assert all("declaring" not in found for found in names)


def test_nothing_is_left_after_sigkill(world: World, tmp_path: Path) -> None:
    assert_scene_leaves_nothing(world, "sigkill", tmp_path)
