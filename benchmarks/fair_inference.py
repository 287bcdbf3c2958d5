"""Fairness, utilization and waiting time of jobs with queries of different cost on one cluster, for each policy.

``--models full`` uses a vision transformer and a BERT of full size (random weights, default configurations, written once).
``--models tiny`` uses models that sleep ``--milliseconds`` a query, so that many workers fit on a few cores. For each
policy, the script starts a cluster, loads all models with a small job, then submits one job for each and runs them
for ``--seconds``. At the end it submits another job, whose model is loaded. Rates count committed queries, in all
windows of `chimera.inference.scheduling.fairness`. *Busy* is the share of the workers' time with a batch in progress, and
*computing* the share in which they computed queries. The difference is the cost of small batches. Workers compute on one thread
each::

    python benchmarks/fair_inference.py [--models tiny --milliseconds 3 30 62] [--workers 2] [--seconds 90] [--policies ...]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import inference_models
from chimera.core.errors import ConflictError
from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal import records
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.models import read
from chimera.inference.scheduling.fairness import progress, ratios

POLICIES = ("fair-share", "rate-ratio", "equal-split", "lowest-rate", "first-come")
WAITING = """
import time

class Waiting:
    def __init__(self, seconds):
        self.seconds = seconds

    def predict(self, queries):
        time.sleep(self.seconds * len(queries))
        return queries

def make(seconds):
    return Waiting(seconds)
"""


def tables(kind: str, milliseconds: list[float], folder: Path) -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Return the model of each job, and its queries."""
    if kind == "full":
        written = inference_models.write(Path("runs/inference-models"))
        return {name: (table, inference_models.queries(name, 8) * 100) for name, table in written.items()}
    file = folder / "waiting.py"
    file.write_text(WAITING)
    made = {
        f"{ms:g} ms": {"kind": "factory", "factory": f"{file}:make", "options": {"seconds": ms / 1000}}
        for ms in milliseconds
    }
    return {name: (read(table), list(range(100_000))) for name, table in made.items()}


@contextlib.contextmanager
def cluster(folder: Path, workers: int, policy: str, preload: str, *, ready: bool = True) -> Iterator[Client]:
    """Run a cluster; return its client when all workers are free or, without ``ready``, when it accepts jobs."""
    command = [sys.executable, "-m", "chimera", "infer", "up", "--workers", str(workers), "--standbys", "0"]
    command += ["--policy", policy, "--cluster", str(folder), "--preload", preload]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    up = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | one_thread)
    try:
        while not (folder / "token").exists() or not (folder / "journal.sqlite").exists():
            time.sleep(0.05)
        client = ClusterFolder(folder).client()
        while ready and sum(row["state"] == "free" for row in client.rows("workers")) < workers:
            time.sleep(0.1)
        yield client
    finally:
        up.terminate()
        up.wait()


def load_everywhere(client: Client, jobs: dict[str, tuple[dict[str, Any], list[Any]]], workers: int) -> None:
    """Load every model in every worker, one after the other."""
    for number, (model, queries) in enumerate(jobs.values(), 1):
        while any(row["models"] < number for row in client.rows("workers")):
            client.wait(client.submit(model, queries[: 2 * workers], batch_size=1))


def run(policy: str, workers: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one policy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cluster"
        jobs = tables(options.models, options.milliseconds, Path(name))
        with cluster(folder, workers, policy, "torch,transformers" if options.models == "full" else "") as client:
            load_everywhere(client, jobs, workers)
            numbers = [
                client.submit(model, queries, name=job, batch_size=options.batch_size)
                for job, (model, queries) in jobs.items()
            ]
            time.sleep(5)
            before = {row["worker"]: row for row in client.rows("workers")}
            time.sleep(options.seconds)
            after = {row["worker"]: row for row in client.rows("workers")}
            model, queries = next(iter(jobs.values()))
            newest = client.submit(model, queries[:100])
            time.sleep(3)
            for number in (*numbers, newest):
                with contextlib.suppress(ConflictError):  # the newest may be done
                    client.cancel(number)
        busy = [(after[w]["busy_s"] - before[w]["busy_s"]) / (after[w]["up_s"] - before[w]["up_s"]) for w in after]
        with contextlib.closing(SqliteJournal(folder / "journal.sqlite")) as journal:
            history = list(journal.records())
    found = progress(history)
    several = [found[number] for number in numbers]
    end_s = found[newest].since_s
    long, short = (ratios(several, window_s, end_s=end_s, settle_s=5.0) for window_s in (60.0, 10.0))
    spans_s = [
        each.seconds
        for each in history
        if isinstance(each, records.Committed) and end_s - options.seconds < each.at_s <= end_s
    ]
    return {
        "worst 60 s": float(long.max()) if long.size else float("nan"),
        "worst 10 s": float(short.max()),
        "95 % of 10 s": float(np.quantile(short, 0.95)),
        "busy %": 100 * float(np.mean(busy)),
        "computing %": 100 * sum(spans_s) / options.seconds / workers,
        "batches/s": len(spans_s) / options.seconds,
        "new job s": found[newest].first_s - found[newest].since_s,
        **{
            f"{job} queries/s": found[n].counts.sum() / (end_s - found[n].since_s)
            for job, n in zip(jobs, numbers, strict=True)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=("full", "tiny"), default="full")
    parser.add_argument(
        "--milliseconds", type=float, nargs="+", default=[5.0, 12.0], help="of a query of each tiny model"
    )
    parser.add_argument("--workers", type=int, default=0, help="by default 2 for full, 10 for tiny")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument(
        "--batch-size", type=lambda text: text if text == "auto" else int(text), default="auto", metavar="N|auto"
    )
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    options = parser.parse_args()
    workers = options.workers or {"full": 2, "tiny": 10}[options.models]
    heads: list[str] = []
    for policy in options.policies:
        figures = run(policy, workers, options)
        if not heads:
            heads = list(figures)
            print(f"| policy | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
        print(f"| `{policy}` | {' | '.join(f'{figures[head]:.3g}' for head in heads)} |", flush=True)


if __name__ == "__main__":
    main()
