"""Measure the takeover of a coordinator of `chimera infer`: kill the coordinator at random moments while a job runs.

    python benchmarks/takeover.py --kills 200            # journal in SQLite, with one standby
    python benchmarks/takeover.py --kills 200 --voters   # journal on three voters

The script reports two times of a takeover, from SIGKILL: until the successor has answered a request, and until it has
dispatched a batch after that. Batches follow one another within 0.05 s. Each kill takes about four seconds on two cores,
because the killed process must come back first.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chimera.core.errors import ChimeraError
from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder

POLL_S, PATIENCE_S = 0.005, 60.0
MODEL = """
import time

class Slow:
    def predict(self, queries):
        time.sleep(0.02 * len(queries))
        return queries

def make():
    return Slow()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--voters", action="store_true")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    answered, dispatched = [], []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), options) as client:
        for number in range(options.kills):
            seconds = takeover(client, Path(folder), chance)
            answered.append(seconds[0])
            dispatched.append(seconds[1])
            print(f"{number + 1}: answer after {seconds[0]:.3f} s, dispatch after {seconds[1]:.3f} s", flush=True)
    for name, seen in (("answer", answered), ("dispatch", dispatched)):
        quantiles = np.quantile(seen, [0.5, 0.9, 0.99])
        print(
            f"{name}: median {quantiles[0]:.3f}, p90 {quantiles[1]:.3f}, p99 {quantiles[2]:.3f}, worst {max(seen):.3f} s"
        )


@contextmanager
def running(folder: Path, options: argparse.Namespace) -> Iterator[Client]:
    """Run a cluster with a job that outlasts the measurement."""
    (folder / "slow.py").write_text(MODEL)
    more = ["--voters", ",".join(free_addresses())] if options.voters else ["--standbys", "1"]
    command = [sys.executable, "-m", "chimera", "infer", "up", "--workers", str(options.workers), *more]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen([*command, "--cluster", str(folder / "cluster")], stdout=log, stderr=log)
    try:
        until(lambda: (folder / "cluster" / "token").exists())
        client = ClusterFolder(folder / "cluster").client()
        until(lambda: all(row["state"] == "free" for row in client.rows("workers")) and client.rows("workers"))
        table = {"kind": "factory", "factory": f"{folder / 'slow.py'}:make", "options": {}}
        client.submit(table, range(50 * options.workers * (60 + 10 * options.kills)), batch_size=5)
        yield client
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(30)


def takeover(client: Client, folder: Path, chance: random.Random) -> tuple[float, float]:
    """Kill the coordinator at a random moment; return the seconds until an answer and a dispatch of its successor."""
    until(lambda: standby_is_ready(client))
    time.sleep(chance.uniform(0.3, 1.0))
    before = leader(client)
    os.kill(before["pid"], signal.SIGKILL)
    struck_s = time.monotonic()
    place = ClusterFolder(folder / "cluster")
    quick = Client(place.leader, place.token(), patience_s=0.0)  # `until` retries, without a pause of 0.1 s
    until(lambda: quick.rows("jobs"))  # only a coordinator answers this
    answer_s = time.monotonic() - struck_s
    known = until(lambda: batches(quick))
    until(lambda: batches(quick) - known)
    dispatch_s = time.monotonic() - struck_s
    assert until(lambda: leader(client))["epoch"] > before["epoch"]
    return answer_s, dispatch_s


def batches(client: Client) -> set[int]:
    """Return the batches that the workers have now; a new coordinator reports them once it has called the workers."""
    return {number for row in client.rows("workers") for _, number in row["batches"]}


def standby_is_ready(client: Client) -> bool:
    """Return whether all candidates run."""
    rows = client.rows("members")
    candidates = [row for row in rows if row["role"] != "worker"]
    return len(candidates) > 1 and all(row["state"] != "silent" and alive(row["pid"]) for row in candidates)


def leader(client: Client) -> dict[str, Any]:
    """Return the row of the coordinator."""
    rows = [row for row in client.rows("members") if row["role"] == "coordinator"]
    return max(rows, key=lambda row: int(row["epoch"]))


def alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(found: Callable[[], Any]) -> Any:
    """Return the first true value of a function; errors of the cluster count as none."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if value := found():
                return value
        except ChimeraError:
            pass
        if time.monotonic() > deadline_s:
            raise SystemExit("the cluster did not come that far in time")
        time.sleep(POLL_S)


def free_addresses() -> list[str]:
    """Return three addresses at which nothing listens."""
    with ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in free]


if __name__ == "__main__":
    main()
