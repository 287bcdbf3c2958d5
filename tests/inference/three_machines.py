"""Three machines as network namespaces: a voter and workers on each, one more worker that joins, and a machine that fails.

`test_remote_workers` runs this file in a namespace of its own, which is the first machine and connects the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder
from inference.running import MODEL, until
from inference.two_machines import ip

HOSTS = ["10.99.1.1", "10.99.1.2", "10.99.2.2"]
VOTERS = ",".join(f"{host}:7001" for host in HOSTS)
QUERIES = list(range(2000))


def main(folder: Path) -> None:
    """Run the test."""
    os.environ["CHIMERA_INSECURE"] = "1"
    (folder / "doubler.py").write_text(MODEL)
    folders = [ClusterFolder(folder / f"cluster{number}") for number in range(3)]
    folders[0].create()
    for each in folders[1:]:
        each.path.mkdir(0o700)
        (each.path / "token").write_text(folders[0].token())
    with contextlib.ExitStack() as stack:
        machines = [[], *(stack.enter_context(machine(place)) for place in (1, 2))]
        ups = [
            stack.enter_context(program(folder / f"up{number}.log", [*machines[number], *up(number, folders[number])]))
            for number in range(3)
        ]
        token = folders[0].path / "worker-token"
        until(token.exists)
        joined = ",".join(f"http://{host}:8600" for host in HOSTS)
        more = ["infer", "worker", "--join", joined, "--name", "b", "--token-file", str(token), "--code"]
        remote = [*machines[1], *chimera(*more, "--folder", str(folder / "b"))]
        second = stack.enter_context(program(folder / "b.log", remote))
        fail(folder, folders, ups)
        second.send_signal(signal.SIGINT)
        assert second.wait(30) == 0, (folder / "b.log").read_text()


def fail(folder: Path, folders: list[ClusterFolder], ups: list[subprocess.Popen[bytes]]) -> None:
    """Scale the workers while a job runs, and end all processes of the machine that leads."""
    clients = [Client(lambda host=host: f"http://{host}:8600", folders[0].token(), patience_s=30.0) for host in HOSTS]
    until(lambda: states(clients[0]).get("b.w0") == "free")
    model = {"kind": "factory", "factory": f"{folder / 'doubler.py'}:make", "options": {"seconds": 0.02}}
    job = clients[0].submit(model, QUERIES, batch_size=5)
    clients[0].scale(2)
    until(lambda: [each.scale().count for each in folders] == [2, 2, 2])
    until(lambda: all(len(list(each.members.glob("w*.json"))) == 2 for each in folders))
    until(lambda: sorted(states(clients[0])) == ["b.w0", "w0", "w1"])
    leader = next(place for place, host in enumerate(HOSTS) if f"//{host}:" in str(folders[0].leader()))
    ups[leader].kill()
    others = clients[(leader + 1) % 3]
    until(lambda: states(others).get("b.w0") in ("busy", "free"))
    assert others.wait(job, 90)["errors"] == 0
    assert [row["result"] for row in others.results(job)] == [2 * query for query in QUERIES]
    assert sorted(states(others)) == ["b.w0", "w0", "w1"]


def states(client: Client) -> dict[str, str]:
    return {row["worker"]: row["state"] for row in client.rows("workers")}


def chimera(*words: str) -> list[str]:
    return [sys.executable, "-m", "chimera", *words]


def up(number: int, folder: ClusterFolder) -> list[str]:
    words = ["infer", "up", "--workers", "1", "--voters", VOTERS, "--host", HOSTS[number], "--port", "8600", "--code"]
    return chimera(*words, "--cluster", str(folder.path))


@contextlib.contextmanager
def program(log: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the context ends."""
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(20)
        running.kill()
        running.wait()


@contextlib.contextmanager
def machine(number: int) -> Iterator[list[str]]:
    """Connect another namespace with this one, and yield the beginning of commands that run there."""
    ip("link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != own)
        there = ("nsenter", "-t", str(holder.pid), "-n")
        here, peer = f"here{number}", f"there{number}"
        ip("link", "add", "name", here, "type", "veth", "peer", "name", peer, "netns", str(holder.pid))
        ip("addr", "add", f"10.99.{number}.1/24", "dev", here)
        ip("link", "set", here, "up")
        ip("addr", "add", f"10.99.{number}.2/24", "dev", peer, at=there)
        ip("link", "set", peer, "up", at=there)
        ip("link", "set", "lo", "up", at=there)
        ip("route", "add", "default", "via", f"10.99.{number}.1", at=there)
        yield list(there)
    finally:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
