"""A fork server that was forked beforehand works like a started one, and exits with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from chimera.core.errors import ActorLost
from chimera.engines.local.engine import Local

PROGRAM = """
import os, signal, sys
import imported_before
from chimera.engines.local.engine import Local
from chimera.engines.local.standby import stand_by

class Cell:
    def __init__(self):
        self.value = 0
    def add(self, value):
        self.value += value
        return self.value
    def parents(self):
        return os.getppid(), os.getpid(), "imported_before" in sys.modules

stand_by()
with Local(preload=[]) as engine:
    cell = engine.spawn(Cell)
    server, actor, was_there = engine.get(cell.parents())
    assert server == engine._servers.pid, "the waiting process is the fork server"
    assert was_there, "what its process had imported is imported in the actors"
    assert engine.get(cell.add(engine.get(cell.add(2)))) == 4
with Local(preload=[]) as second:
    assert second.get(second.spawn(Cell).parents())[2] is False, "a second engine has a fork server of its own"
stand_by()  # unused
third = Local(preload=[])
stand_by()
print(server, actor, third._servers.pid, *third.get(third.spawn(Cell).parents())[:2], flush=True)
{end}
"""


@pytest.mark.long
def test_standby_serves_one_engine_and_nothing_of_it_stays(tmp_path: Path) -> None:
    (tmp_path / "imported_before.py").write_text("")
    for end in ("third.close()", "os.kill(os.getpid(), signal.SIGKILL)"):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.replace("{end}", end))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, env=environment, check=False, timeout=60
        )
        assert ran.stderr == ""
        left = [pid for pid in map(int, ran.stdout.split()) if psutil.pid_exists(pid)]
        gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in left], timeout=10)
        assert not alive, gone


def test_an_actor_that_is_asked_for_after_the_fork_server_died_lives_in_a_new_one() -> None:
    with Local(preload=[]) as engine:
        before = engine.spawn(dict)
        engine.get(before.keys(), timeout_s=30)
        first = psutil.Process(engine._servers.pid)
        first.kill()
        psutil.wait_procs([first], timeout=10)
        while not engine.lost():
            engine.wait([before.keys()], timeout_s=0.05)
        with pytest.raises(ActorLost):
            engine.get(before.keys(), timeout_s=10)
        assert engine.get(engine.spawn(dict, a=1).get("a"), timeout_s=30) == 1
        assert engine._servers.pid != first.pid
        assert engine.lost() == [before]
    assert psutil.Process().children() == []
