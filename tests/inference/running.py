"""A real cluster for tests: `chimera infer up` in a process, and operations on its members."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder

PATIENCE_S = 60.0

MODEL = '''
import os, time
from pathlib import Path

class Doubler:
    """Doubles numbers, slowly; writes down each query that it has answered."""

    def __init__(self, seconds, log, lethal):
        self._seconds, self._log, self._lethal = seconds, Path(log), lethal

    def predict(self, queries):
        time.sleep(self._seconds * len(queries))
        if self._lethal in queries:
            os.kill(os.getpid(), 9)
        if "broken" in queries:
            raise ValueError("a broken query")
        with self._log.open("a") as log:
            log.write("".join(f"{query}\\n" for query in queries))
        return [2 * query for query in queries]

def make(seconds=0.01, log="/dev/null", lethal=None):
    return Doubler(seconds, log, lethal)
'''


class RunningCluster:
    """One cluster; its members are looked up by name."""

    def __init__(self, folder: Path, up: subprocess.Popen[bytes]) -> None:
        self.folder, self.up = folder, up
        self.client: Client = ClusterFolder(folder).client()
        self.model_file = folder.parent / "doubler.py"
        self.model_file.write_text(MODEL)

    def model(self, **options: Any) -> dict[str, Any]:
        """Return the table of a model that doubles numbers."""
        return {"kind": "factory", "factory": f"{self.model_file}:make", "options": options}

    def member(self, role: str) -> dict[str, Any]:
        """Return the row of a living member with this role; wait until there is one."""
        return until(lambda: next(iter(self.members(role)), None))

    def members(self, role: str) -> list[dict[str, Any]]:
        """Return the rows of the members with this role that live and have just said so."""
        rows = [row for row in self.client.rows("members") if row["role"] == role and row["state"] != "silent"]
        return [row for row in rows if alive(row["pid"])]

    def pid(self, name: str) -> int:
        """Return the process that has a name now; wait while it is restarted."""
        return int(until(lambda: [row["pid"] for row in self.client.rows("members") if row["name"] == name])[0])

    def answers(self, job: str) -> list[Any]:
        """Return the results of a job, having checked that they are in order, each once."""
        rows = list(self.client.results(job))
        assert [row["index"] for row in rows] == list(range(len(rows)))
        return [row.get("result", row.get("error")) for row in rows]

    def processed(self, job: str, at_least: int) -> None:
        """Wait until so many queries of a job are finished."""
        until(lambda: self.client.job(job)["finished"] >= at_least)


@contextlib.contextmanager
def cluster(
    folder: Path, *, workers: int = 2, standbys: int | None = 1, options: Sequence[str] = ()
) -> Iterator[RunningCluster]:
    """Run a cluster; when the context ends, all of its processes must have ended."""
    place = folder / "cluster"
    command = [sys.executable, "-m", "chimera", "infer", "up", "--workers", str(workers), "--preload", ""]
    if standbys is not None:
        command += ["--standbys", str(standbys)]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen([*command, *options, "--cluster", str(place)], stdout=log, stderr=log, cwd=folder)
    try:
        until(lambda: (place / "token").exists() or up.poll() is not None)
        assert up.poll() is None, (folder / "up.log").read_text()
        running = RunningCluster(place, up)
        until(lambda: sum(row["state"] != "joining" for row in running.client.rows("workers")) == workers)
        until(lambda: len(running.members("standby")) >= (standbys or 0))  # standbys start when a coordinator leads
        pids = [row["pid"] for row in running.client.rows("members")]
        yield running
        pids += [row["pid"] for row in running.client.rows("members")]
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(20)
    left = [pid for pid in pids if alive(pid)]
    assert not left, f"processes are left of the cluster: {left}"


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(found: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Return the first true value that a function gives."""
    deadline_s = time.monotonic() + patience_s
    while not (value := found()):
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.02)
    return value


def signalled(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process of the cluster."""
    os.kill(pid, number)


def command(cluster: RunningCluster, *words: str) -> Any:
    """Return what a command prints, which is JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "chimera", "infer", *words, "--json", "--cluster", str(cluster.folder)],
        capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]
