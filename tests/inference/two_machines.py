"""Two machines as two network namespaces: a cluster on one, workers on the other, a cut link and a killed coordinator.

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


def main(folder: Path) -> None:
    """Run the test."""
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
                strike(running)
                second.send_signal(signal.SIGINT)
                assert second.wait(20) == 0, (folder / "b.log").read_text()
                until(lambda: [row["worker"] for row in running.client.rows("workers")] == ["w0"])
            finally:
                second.kill()
                second.wait()
    told = (folder / "b.log").read_text()
    assert "does not answer" in told, told
    journal = SqliteJournal(ClusterFolder(folder / "cluster").journal)
    committed = Counter((one.job, one.batch) for one in journal.records() if isinstance(one, Committed))
    journal.close()
    assert max(committed.values()) == 1


def strike(running: RunningCluster) -> None:
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
    main(Path(sys.argv[1]))
