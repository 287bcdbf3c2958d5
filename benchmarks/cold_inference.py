"""Seconds until the first results: of two jobs at a cluster that has just started, and of a new job while workers are busy.

The models are a vision transformer and a BERT of full size with random weights. Both jobs are submitted as soon as the cluster
accepts jobs; times count from the start of ``chimera infer up``. Then a copy of the BERT is submitted as a new job while all
workers compute::

    python benchmarks/cold_inference.py [--workers 2]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import inference_models
from chimera.inference.client import Client
from chimera.inference.models import read
from fair_inference import cluster


def first_results_s(client: Client, jobs: list[str], since_s: float) -> list[float]:
    """Wait until each job has a result; return the seconds until then."""
    found: dict[str, float] = {}
    while len(found) < len(jobs):
        for job in jobs:
            if job not in found and client.job(job)["finished"]:
                found[job] = time.monotonic() - since_s
        time.sleep(0.01)
    return [found[job] for job in jobs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    place = Path("runs/inference-models")
    tables = inference_models.write(place)
    queries = {name: inference_models.queries(name, 8) * 100 for name in tables}
    with tempfile.TemporaryDirectory() as name:
        new = shutil.copytree(place / "bert", Path(name) / "new")
        began_s = time.monotonic()
        with cluster(Path(name) / "cluster", options.workers, "fair-share", "", ready=False) as client:
            up_s = time.monotonic() - began_s
            jobs = [client.submit(table, queries[model]) for model, table in tables.items()]
            cold = first_results_s(client, jobs, began_s)
            while any(row["models"] < len(tables) for row in client.rows("workers")):
                time.sleep(0.1)
            time.sleep(5)
            table = read({"kind": "transformers", "task": "fill-mask", "model": str(new)})
            began_s = time.monotonic()
            (warm,) = first_results_s(client, [client.submit(table, queries["bert"])], began_s)
            for job in jobs:
                client.cancel(job)
    print(
        f"up after {up_s:.2f} s; first results after {', '.join(f'{each:.2f} s' for each in cold)}; new job {warm:.2f} s"
    )


if __name__ == "__main__":
    main()
