"""A hub that is killed again and again leaves neither memory nor files behind, at the node and at the driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("websockets")

from chimera.engines.federation import FederationEngine
from chimera.federation.hub.invite import invite
from chimera.federation.identity.join import join
from federation.processes import Process, hub_process, node_process
from federation.test_exactly_once import Direct, Driver, expected, logged, rounds

MAX_BYTES = 16 << 20  # of growth in the second half: a body for each kill would be 32 MB, and glibc keeps some memory


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def held(pid: int) -> tuple[int, int, int]:
    """Return the resident bytes, open files and threads of a process."""
    process = psutil.Process(pid)
    return process.memory_info().rss, process.num_fds(), process.num_threads()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it counts file descriptors: run it on Linux or macOS")
@pytest.mark.parametrize("kills", [40, 200])
def test_kills_of_the_hub_leave_no_memory_and_no_files(tmp_path: Path, processes: list[Process], kills: int) -> None:
    hub, url = hub_process(tmp_path / "hub")
    processes.append(hub)
    port = int(url.rpartition(":")[2])
    for role, name in (("node", "node-0"), ("requester", "alice")):
        join(*invite(tmp_path / "hub", role, name), tmp_path / name)  # type: ignore[arg-type]
    processes.append(node_process(tmp_path / "node-0", tmp_path / "log"))
    pids = [processes[1].process.pid, psutil.Process().pid]
    vector = np.random.default_rng(1).normal(size=40_000)
    truth = rounds(Direct(tmp_path / "truth", 1).round, 0, 5 * (kills + 1), vector)
    before: list[tuple[int, int, int]] = []
    with FederationEngine(identity=str(tmp_path / "alice"), nodes=["node-0"]) as engine:
        driver = Driver(engine, 1)
        vector = rounds(driver.round, 0, 5, vector)
        for kill in range(1, kills + 1):
            processes[0].kill()
            processes[0], _ = hub_process(tmp_path / "hub", port)
            vector = rounds(driver.round, 5 * kill, 5 * (kill + 1), vector)
            if kill == kills // 2:
                before = [held(pid) for pid in pids]
        after = [held(pid) for pid in pids]
    assert vector.tobytes() == truth.tobytes()
    assert logged(tmp_path / "log") == expected(1, 5 * (kills + 1))
    for (bytes_before, *counts_before), (bytes_after, *counts_after) in zip(before, after, strict=True):
        assert bytes_after - bytes_before < MAX_BYTES
        assert all(now <= then + 2 for now, then in zip(counts_after, counts_before, strict=True))
