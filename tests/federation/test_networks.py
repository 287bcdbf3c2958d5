"""Nodes behind NAT, with delay and loss, one of them behind a proxy: the run is the same as without faults.

CHIMERA_NETWORK_CUTS is the number of cut connections, one every 6 s; with 100 the test takes ten minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("websockets")

from chimera.federation.hub.invite import opened
from chimera.federation.identity.authority import Authority
from federation.networks import HUB, PORT, PROXY, SIZE, Inside, Networks
from federation.test_exactly_once import Direct, expected, logged, rounds

pytestmark = pytest.mark.slow
NODES = ["node-0", "node-1", "node-2"]
CUTS = int(os.environ.get("CHIMERA_NETWORK_CUTS", "10"))
EVERY_S, BACK_S = 6.0, 2.0


def permitted() -> bool:
    if os.name != "posix" or not all(map(shutil.which, ("ip", "iptables", "tc", "sysctl"))):
        return False
    name = f"cf{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], check=False)
    return made


@pytest.fixture
def networks() -> Iterator[Networks]:
    if not permitted():
        pytest.skip("network namespaces need root, ip, iptables and tc")
    with Networks(NODES) as made:
        yield made


def test_cuts_kills_loss_and_a_proxy_change_no_bit(networks: Networks, tmp_path: Path) -> None:
    started: list[Inside] = []

    def start(place: str, *command: object, **variables: str) -> Inside:
        started.append(Inside(networks, place, *command, **variables))
        return started[-1]

    def start_hub() -> Inside:
        hub = start("hub", "chimera", "hub", "up", "--folder", tmp_path / "hub", "--host", HUB, "--port", 8443)
        hub.wait(1, 60)
        return hub

    networks.only_by_proxy("node-2")
    try:
        hub = start_hub()
        start("proxy", "federation.networks", "proxy", PROXY).wait(1, 60)
        nodes = []
        through = {"HTTPS_PROXY": f"http://{PROXY}:{PORT}"}
        for role, name in [*(("node", name) for name in NODES), ("requester", "driver")]:
            code = invited(tmp_path / "hub", role, name)
            variables = through if name == "node-2" else {}
            command = "chimera", "node", "join", f"https://{HUB}:8443", "--code", code, "--folder", tmp_path / name
            joining = start(name, *command, **variables)
            assert joining.process.wait(60) == 0
            if role == "node":
                log = tmp_path / f"{name}.log"
                nodes.append(start(name, "federation.processes", tmp_path / name, log, **variables))
                nodes[-1].wait(1, 60)
        stop = tmp_path / "stop"
        driver = start("driver", "federation.networks", "driver", tmp_path / "driver", stop, ",".join(NODES))
        driver.wait(20, 120)
        back_s, down_s = [], 0.0
        random = Random(3)
        for number in range(CUTS):
            time.sleep(EVERY_S)
            if number in (CUTS // 4, CUTS // 2, 3 * CUTS // 4):
                killed_s = time.monotonic()
                hub.kill()
                hub = start_hub()
                down_s += time.monotonic() - killed_s
            place = random.randrange(len(NODES))
            had = len(nodes[place].lines)
            with networks.cut(NODES[place], *(["DROP"] if number % 2 else [])):
                lasts_s = random.uniform(1.2, 3.0)  # there is a heartbeat each second
                time.sleep(lasts_s)
                down_s += lasts_s
            up_s = time.monotonic()
            if number % 2 == 0:  # after silence, the old connection may have survived
                nodes[place].wait(had + 1, 30)
                back_s.append(nodes[place].lines[had][0] - up_s)
        time.sleep(EVERY_S)
        stop.touch()
        assert driver.process.wait(60) == 0
    finally:
        for process in started:
            process.kill()
    count, said = len(driver.lines) - 1, driver.lines[-1][1]
    logs = [tmp_path / f"{name}.log" for name in NODES]
    assert logged(*logs) == expected(3, count)
    vector = np.random.default_rng(1).normal(size=SIZE)
    truth = rounds(Direct(tmp_path / "truth", 3).round, 0, count, vector)
    assert json.loads(said) == hashlib.sha256(truth.tobytes()).hexdigest()
    took = [float(line) for _, line in driver.lines[:-1]]
    median = statistics.median(took)
    usual = statistics.mean(
        one for one in took if one < 5 * median
    )  # a busy machine has slow rounds without faults, too
    goodput = usual * len(took) / (sum(took) - down_s)  # while links and hub were up
    delay = "50 ms of delay" if networks.delayed else "no delay"
    print(f"\n{delay}, {CUTS} cuts, back within {max(back_s):.2f} s; a round {usual:.3f} s; goodput {goodput:.2f}")  # noqa: T201
    assert max(back_s) < BACK_S


def invited(folder: Path, role: str, name: str) -> str:
    from chimera.federation.identity.invitations import Invitation

    with opened(folder) as state:
        invitation = Invitation.new(Authority(folder).fingerprint, own_certificate=True)
        state.invite(role, name, invitation.digest)  # type: ignore[arg-type]
    return invitation.code
