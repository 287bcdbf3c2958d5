"""Two inference jobs with equal query rates, though one model is 2.4 times slower; the coordinator is killed without loss.

The script starts four workers, a coordinator and a standby, kills the coordinator half-way, and at the end checks that every
query has exactly one result.

Takes about 15 s on two cores.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

import chimera

QUERIES = 1200
SECONDS = {"quick": 0.010, "slow": 0.024}  # per query


class Squares:
    """A placeholder for a model: `predict` takes as long as a model, and returns results that can be checked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def predict(self, queries: list[int]) -> list[int]:
        """Return the squares."""
        time.sleep(self.seconds * len(queries))
        return [query * query for query in queries]


def main() -> None:
    """Submit both jobs, show their progress, and kill the coordinator."""
    with chimera.InferenceCluster(workers=4, standbys=1, preload="") as cluster:
        jobs = {
            name: chimera.infer(
                {"kind": "factory", "factory": f"{Path(__file__).resolve()}:Squares", "options": {"seconds": seconds}},
                range(QUERIES),
                cluster=cluster,
                name=name,
            )
            for name, seconds in SECONDS.items()
        }
        killed = ""
        ratio = 1.0
        with Live(refresh_per_second=10) as live:
            while True:
                rates, workers, members = (cluster.client.rows(what) for what in ("rate", "workers", "members"))
                live.update(picture(rates, workers, members, killed))
                done = [row["processed"] for row in rates]
                if all(row["state"] in ("done", "failed") for row in rates):
                    break
                if not killed and sum(done) > QUERIES:
                    ratio = max(row["rate"] for row in rates) / min(row["rate"] for row in rates)
                    killed = kill_coordinator(members)
                time.sleep(0.1)
        for name, job in jobs.items():
            rows = job.results()
            assert [row["index"] for row in rows] == list(range(QUERIES))
            assert [row["result"] for row in rows] == [query * query for query in range(QUERIES)]
            print(f"{name}: each of {len(rows)} queries has exactly one result")
        print(f"{killed} was killed half-way; until then the rates were within a factor of {ratio:.2f}")


def kill_coordinator(members: list[dict]) -> str:
    """Kill the leading coordinator, and return its name."""
    leader = next(row for row in members if row["role"] == "coordinator")
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader["pid"], signal.SIGKILL)
    return f"{leader['name']} (process {leader['pid']})"


def picture(rates: list[dict], workers: list[dict], members: list[dict], killed: str) -> Group:
    """Return the display: jobs, workers and coordinator."""
    jobs = Table("job", "s/query", "queries/s", "progress", "", box=None)
    for row in rates:
        bar = ProgressBar(total=row["queries"], completed=row["processed"], width=40)
        progress = f"{row['processed']}/{row['queries']}"
        jobs.add_row(row["name"], f"{SECONDS[row['name']]:.3f}", f"{row['rate']:.0f}", bar, progress)
    names = {row["job"]: row["name"] for row in rates}
    serving = Table(*(row["worker"] for row in workers), box=None)
    serving.add_row(*(names.get(row["job"], row["state"]) for row in workers))
    leading = [f"{row['name']}, in epoch {row['epoch']}" for row in members if row["role"] == "coordinator"]
    status = f"coordinator: {leading[-1] if leading else 'none'}" + (f"; {killed} was killed" if killed else "")
    return Group(jobs, "", serving, "", status, "")


if __name__ == "__main__":
    main()
