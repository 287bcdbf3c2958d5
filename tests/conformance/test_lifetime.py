"""Everything that an engine starts ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from chimera.core.errors import EngineClosedError
from conformance.actors import Relay
from conformance.worlds import World

pytestmark = pytest.mark.sampled(2)

LIMIT_S = 240  # protects against hanging; on a busy machine a Ray takes a minute to start and to end


def test_close_may_be_repeated(world: World) -> None:
    engine = world.engine()
    engine.get(engine.spawn(Relay).echo(1), timeout_s=world.limit_s)
    for _ in range(3):
        engine.close()


def test_an_engine_that_did_nothing_can_be_closed(world: World) -> None:
    world.engine().close()


def test_a_closed_engine_takes_no_calls(world: World) -> None:
    with world.engine() as engine:
        relay = engine.spawn(Relay)
        ref = relay.echo(1)
        engine.get(ref, timeout_s=world.limit_s)
    for use in (
        lambda: engine.spawn(Relay),
        lambda: engine.put(1),
        lambda: relay.echo(1),
        lambda: engine.get(ref),
        lambda: engine.wait([ref]),
        lambda: engine.group([relay]),
    ):
        with pytest.raises(EngineClosedError):
            use()


def test_an_exception_in_the_block_is_raised(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.engine():
        raise ZeroDivisionError


def test_two_engines_at_once_are_independent(world: World) -> None:
    with world.engine() as one, world.engine() as other:
        a, b = one.spawn(Relay), other.spawn(Relay)
        assert one.get(a.echo("one"), timeout_s=world.limit_s) == "one"
        one.close()
        assert other.get(b.echo("other"), timeout_s=world.limit_s) == "other"


def start(world: World, scene: str, folder: Path) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parents[1]), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-m", "conformance.scenes", world.name, scene],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def assert_nothing_left(report: dict[str, Any], folder: Path) -> None:
    assert [pid for pid in report["pids"] if psutil.pid_exists(pid)] == []
    assert [name for name in report["shared_memory"] if Path(name).exists()] == []
    assert list(folder.iterdir()) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scene", ["success", "failure", "busy", "kill", "disturbed", "between_actors"])
def test_nothing_is_left_after(world: World, scene: str, tmp_path: Path) -> None:
    assert_scene_leaves_nothing(world, scene, tmp_path)


def assert_scene_leaves_nothing(world: World, scene: str, folder: Path) -> None:
    process = start(world, scene, folder)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (0, "")
    report = json.loads(output)
    assert (report["children"], report["threads"], report["descriptors"]) == ([], [], [])
    assert bool(report["pids"]) == world.real_processes
    assert_nothing_left(report, folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "scene",
    [
        "interrupted_in_calls",
        "interrupted_in_collectives",
        "interrupted_in_a_hung_call",
        "interrupted_while_one_is_stopped",
    ],
)
def test_nothing_is_left_after_ctrl_c(world: World, scene: str, tmp_path: Path) -> None:
    process = start(world, scene, tmp_path)
    assert process.stdout is not None
    line = process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output, errors) == (130, "", "")
    assert_nothing_left(json.loads(line), tmp_path)
