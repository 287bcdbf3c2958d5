"""Large bodies pass with a bounded amount of memory beside them, in the driver, the hub and the node."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("websockets")

from chimera.engines.federation.credentials import Credentials
from chimera.federation.hub.invite import invite
from chimera.federation.identity.join import join
from federation.processes import Process, hub_process

MIB = 1 << 20
MAX_GROWTH = 64 * MIB
SOURCE = bytes(range(256)) * (MIB // 256)


def peak(pid: int) -> int:
    """Return the largest resident memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc: run it on Linux")
@pytest.mark.parametrize("size", [96 * MIB, pytest.param(1000 * MIB, marks=pytest.mark.slow)])
def test_a_large_body_passes_with_at_most_64_mib_beside_it(tmp_path: Path, size: int) -> None:
    hub, _ = hub_process(tmp_path / "hub")
    started = [hub]
    try:
        for role, name in (("node", "node-0"), ("requester", "alice")):
            join(*invite(tmp_path / "hub", role, name), tmp_path / name)  # type: ignore[arg-type]
        node = Process("federation.test_memory", "node", tmp_path / "node-0")
        driver = Process("federation.test_memory", "driver", tmp_path / "alice", size)
        started += [node, driver]
        at_rest = [int(node.line()), psutil.Process(hub.process.pid).memory_info().rss]
        told = json.loads(driver.line())
        assert told["same"]
        assert told["peak"] - told["at_rest"] < size + MAX_GROWTH
        assert peak(node.process.pid) - at_rest[0] < size + MAX_GROWTH
        assert peak(hub.process.pid) - at_rest[1] < MAX_GROWTH
    finally:
        for process in started:
            process.kill()


def node(folder: Path) -> None:
    """Answer a large body with its digest, and a small one with a large body."""
    from chimera.engines.http.hosting.hosted_actor import Reply
    from chimera.federation.node.service import Service, serve
    from federation.federation_kit import AllowAll

    class Bodies(Service):
        def _dispatch(self, ask, body, done):  # type: ignore[no-untyped-def]
            large = len(body) > 100
            done(Reply(200, ask.type, hashlib.sha256(body).digest() if large else SOURCE * (int(body) // MIB)))

    credentials = Credentials.read(folder, "node")
    serve(Bodies(credentials, {}, AllowAll(), lambda: print(psutil.Process().memory_info().rss, flush=True)))  # noqa: T201


def driver(folder: Path, size: int) -> None:
    from chimera.engines.federation.connection import TunnelConnection
    from chimera.engines.federation.tunnel import Tunnel

    tunnel = Tunnel(Credentials.read(folder, "requester"), os.urandom(16).hex(), max_bytes=1 << 30, away_s=60.0)
    tunnel.wait_for(bool, 60.0)
    at_rest = psutil.Process().memory_info().rss
    connection = TunnelConnection(tunnel, "node-0")

    def ask(body: bytes) -> bytes:
        answer = connection.request("POST", "/v1/chimera/actors/x", body, "x/y", timeout_s=600.0, idempotent=False)
        return bytes(answer.body) if len(body) > 100 else hashlib.sha256(answer.body).digest()

    digest = hashlib.sha256(SOURCE * (size // MIB)).digest()
    same = ask(SOURCE * (size // MIB)) == digest == ask(str(size).encode())
    print(json.dumps({"same": same, "at_rest": at_rest, "peak": peak(os.getpid())}), flush=True)  # noqa: T201
    tunnel.close()


if __name__ == "__main__":
    if sys.argv[1] == "node":
        node(Path(sys.argv[2]))
    else:
        driver(Path(sys.argv[2]), int(sys.argv[3]))
