"""Ten thousand hostile requests to each server during training: results have the same bits, and no server's memory grows."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.inference.journal.raft.connection import parse_address
from inference.voters import Voters
from nodes.served import worker_process, write_data
from security.attacker import BEARER, TOKEN, Attacker
from security.servers import SERVERS
from security.test_routes import BODIES, FOREIGN, WRONG, Client

REQUESTS = int(os.environ.get("CHIMERA_SOAK_REQUESTS", "10000"))
MAX_GROWTH_BYTES = 128 << 20
SLOW = 50
WORKER = """
from torch import nn
from chimera.nodes.workers import TorchWorker
worker = TorchWorker(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
if __name__ == "__main__":
    worker.serve()
"""
SERVE = """
import sys
from pathlib import Path
from security.servers import served
with served(sys.argv[1], Path(sys.argv[2])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@dataclass
class Target:
    """A server process under attack, and how large it was before."""

    name: str
    url: str
    pid: int
    asked: int = 0
    statuses: set[int] = field(default_factory=set)
    before: dict[str, int] = field(default_factory=dict)

    def size(self) -> dict[str, int]:
        told = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return {
            "bytes": int(told["VmRSS"].split()[0]) << 10,
            "threads": int(told["Threads"]),
            "descriptors": len([*Path(f"/proc/{self.pid}/fd").iterdir()]),
        }

    def attack(self, count: int, seed: int) -> None:
        """Send ``count`` hostile requests."""
        rng, client = random.Random(seed), Client(self.url)
        targets = [
            "/health",
            "/v1/x",
            "/openapi.json",
            "/v1/chimera/actors/a",
            "/v1/jobs",
            "/v1/infer/jobs",
            "/../etc",
            "/%00",
        ]
        for _ in range(count):
            headers: list[tuple[str, str]] = []
            kind, target, body, host = rng.randrange(8), rng.choice(targets), None, ""
            if kind == 1:
                headers = [WRONG]
            elif kind == 2:
                host, headers = FOREIGN["host"], [("Origin", FOREIGN["origin"])]
            elif kind == 3:
                headers = [("X", "y")] * 200
            elif kind == 4:
                headers = [("X", "y" * 70_000)]
            elif kind == 5:
                headers = [("Content-Length", "9" * 17)]
            elif kind >= 6:
                content_type, body = rng.choice([each for each in BODIES if len(each[1]) < 10_000])
                headers = [BEARER, ("Content-Type", content_type)] if kind == 7 else [("Content-Type", content_type)]
            method = "POST" if body is not None else rng.choice(["GET", "POST", "DELETE", "TRACE"])
            self.statuses.add(client.status(method, target, *headers, host=host, body=body))
            self.asked += 1


@contextlib.contextmanager
def process_of(name: str, folder: Path) -> Iterator[Target]:
    """Serve one of `SERVERS` in a separate process."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, name, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Target(name, process.stdout.readline().strip(), process.pid)
    finally:
        process.communicate(timeout=60)


def bits(engine: Any, out: Path) -> bytes:
    """Train, and return the parameters."""
    rows = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2
    run = chimera.train(
        "logistic-regression" if engine == "local" else network(),
        (rows, rows), engine=engine, workers=2, batch_size=10, rounds=200, seed=1, out=out,
        optimizer={"name": "sgd", "lr": 0.1},
    )  # fmt: skip
    assert [event.event for event in run.events if "lost" in event.event] == []
    return run.trained.parameters().tobytes()


def network() -> Any:
    from torch import nn

    return lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def connect_repeatedly(address: str, count: int) -> None:
    """Connect to a voter ``count`` times with bytes that are no handshake."""
    rng = random.Random(0)
    for _ in range(count):
        with contextlib.suppress(OSError), socket.create_connection(parse_address(address), 10) as plain:
            plain.sendall(rng.randbytes(rng.choice([1, 32, 64, 100])))
            if rng.random() < 0.5:
                plain.shutdown(socket.SHUT_WR)
                plain.recv(100)


@pytest.mark.slow
def test_hostile_requests_change_no_bits_and_grow_no_server(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(process_of(name, tmp_path / name.replace(" ", "-"))) for name in SERVERS]
        urls = []
        for name in ("tree1", "tree2"):
            rng = np.random.default_rng(0)
            write_data(tmp_path / "chimera_train_data" / name, rng.normal(size=(40, 4)), np.arange(40) % 2)
            (tmp_path / f"{name}.py").write_text(WORKER)
            node = stack.enter_context(worker_process(tmp_path / f"{name}.py", tmp_path, CHIMERA_TOKEN=TOKEN))
            node.wait_healthy()
            urls.append(node.url)
            targets.append(Target(f"training node {name}", node.url, node.process.pid))
        voters = Voters(tmp_path / "voters")
        stack.callback(voters.end)
        engines = {"http": {"name": "http", "nodes": urls, "token": TOKEN}, "local": "local"}
        expected = {name: bits(engine, tmp_path / f"{name}-before") for name, engine in engines.items()}
        slow = [stack.enter_context(Attacker(target.url).connected()) for target in targets for _ in range(SLOW)]
        for client in slow:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        for target in targets:
            target.attack(200, seed=0)  # whatever a server keeps once for all is there now
            target.before = target.size()
        threads = [threading.Thread(target=target.attack, args=(REQUESTS, 1)) for target in targets]
        threads.append(threading.Thread(target=connect_repeatedly, args=(voters.addresses[0], REQUESTS)))
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        runs = 0
        for number in itertools.count():
            for name, engine in engines.items():
                assert bits(engine, tmp_path / f"{name}-{number}") == expected[name]
                runs += 1
            if not any(thread.is_alive() for thread in threads):
                break
        for thread in threads:
            thread.join()
        for client in slow:
            client.close()
        print(f"{runs} runs, {sum(target.asked for target in targets)} requests in {time.monotonic() - began_s:.0f} s")  # noqa: T201 - what was measured
        for target in targets:
            assert target.asked == REQUESTS + 200
            assert 500 not in target.statuses, target
            assert Client(target.url).ask("/health")[0] == 200
            after = target.size()
            print(target.name, {key: after[key] - target.before[key] for key in after}, sorted(target.statuses))  # noqa: T201
            assert after["bytes"] - target.before["bytes"] < MAX_GROWTH_BYTES, target
            assert after["threads"] <= target.before["threads"] + 8, (target, after)
            assert after["descriptors"] <= target.before["descriptors"] + 16, (target, after)
        assert voters.process(0).poll() is None
