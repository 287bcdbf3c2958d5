"""Two machines as two network namespaces: a cluster on one, workers on the other, and a link that is cut or slow.

`test_remote_workers` runs this file in a namespace of its own, which is the cluster's machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.records import Committed
from chimera.inference.journal.sqlite import SqliteJournal
from inference.running import RunningCluster, cluster, signalled, until

HERE, THERE = "10.99.0.1", "10.99.0.2"
CUT_S = 5.0
QUERIES = list(range(2500))


ECHO = "class Echo:\n    def predict(self, queries):\n        return queries\n"


def main(folder: Path, test: str) -> None:
    """Run a test, ``cut`` or ``slow``."""
    os.environ["CHIMERA_INSECURE"] = "1"
    with second_machine() as there:
        options = ["--host", HERE, "--port", "0", "--code"]
        with cluster(folder, workers=1, standbys=1, options=options) as running:
            url = until(lambda: re.search(r"is at (\S+);", (folder / "up.log").read_text()))[1]
            command = [*there, sys.executable, "-m", "chimera", "infer", "worker", "--join", url, "--workers", "2"]
            command += ["--name", "b", "--token-file", str(running.folder / "worker-token"), "--code"]
            with (folder / "b.log").open("wb") as log:
                second = subprocess.Popen([*command, "--folder", str(folder / "b")], stdout=log, stderr=log)
            try:
                {"cut": cut, "slow": slow}[test](running, there)
                second.send_signal(signal.SIGINT)
                assert second.wait(20) == 0, (folder / "b.log").read_text()
                until(lambda: [row["worker"] for row in running.client.rows("workers")] == ["w0"])
            finally:
                second.kill()
                second.wait()
    told = (folder / "b.log").read_text()
    assert ("does not answer" in told) == (test == "cut"), told
    journal = SqliteJournal(ClusterFolder(folder / "cluster").journal)
    committed = Counter((one.job, one.batch) for one in journal.records() if isinstance(one, Committed))
    journal.close()
    assert max(committed.values()) == 1


def cut(running: RunningCluster, there: list[str]) -> None:
    """Cut the link while a job runs, connect it again, and kill the coordinator."""
    until(lambda: len(states(running)) == 3)
    job = running.client.submit(running.model(seconds=0.02), QUERIES, batch_size=5)
    until(lambda: [states(running).get(name) for name in ("b.w0", "b.w1")] == ["busy", "busy"])
    ip("link", "set", "va", "down")
    threading.Event().wait(CUT_S)
    assert [states(running)[name] for name in ("b.w0", "b.w1")] == ["hung", "hung"]
    ip("link", "set", "va", "up")
    until(lambda: [states(running).get(name) for name in ("b.w0", "b.w1")] == ["busy", "busy"], 10)
    signalled(running.member("coordinator")["pid"], signal.SIGKILL)
    until(lambda: [states(running).get(name) for name in ("b.w0", "b.w1")] == ["busy", "busy"], 10)
    assert running.client.wait(job, 60)["errors"] == 0
    assert running.answers(job) == [2 * query for query in QUERIES]


def slow(running: RunningCluster, there: list[str]) -> None:
    """Compute batches of a megabyte over a link of three megabits per second: no worker is lost."""
    for at, device in (((), "va"), (there, "vb")):
        shape = [
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            "3mbit",
            "burst",
            "32k",
            "latency",
            "400ms",
        ]
        subprocess.run([*at, *shape], check=True, timeout=10)
    (running.folder.parent / "echo.py").write_text(ECHO)
    until(lambda: len(states(running)) == 3)
    queries = [str(number) * 10_000 for number in range(200)]
    model = {"kind": "factory", "factory": f"{running.folder.parent / 'echo.py'}:Echo"}
    running.client.drain("w0")
    job = running.client.submit(model, queries, batch_size=50)
    assert running.client.wait(job, 90)["errors"] == 0
    assert running.answers(job) == queries
    logs = "".join(log.read_text() for log in running.folder.glob("logs/c*/chimera_status.log"))
    assert "hung" not in logs, logs


def states(running: RunningCluster) -> dict[str, str]:
    return {row["worker"]: row["state"] for row in running.client.rows("workers")}


def ip(*words: str, at: tuple[str, ...] = ()) -> None:
    subprocess.run([*at, "ip", *words], check=True, timeout=10)


@contextlib.contextmanager
def second_machine() -> Iterator[list[str]]:
    """Connect another namespace with this one, and yield the beginning of commands that run there."""
    ip("link", "set", "lo", "up")
    holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != own)
        there = ("nsenter", "-t", str(holder.pid), "-n")
        ip("link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", str(holder.pid))
        ip("addr", "add", f"{HERE}/24", "dev", "va")
        ip("link", "set", "va", "up")
        ip("addr", "add", f"{THERE}/24", "dev", "vb", at=there)
        ip("link", "set", "vb", "up", at=there)
        ip("link", "set", "lo", "up", at=there)
        yield list(there)
    finally:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
