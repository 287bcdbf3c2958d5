"""Seconds until the first results of a cluster that has just started and of a new job while workers are busy, and its memory.

The models are a vision transformer and a BERT of full size with random weights. Both jobs are submitted as soon as the cluster
accepts jobs; times count from the start of ``chimera infer up``. CPU seconds are those of all processes of the cluster until
both jobs have a result. Other programs affect them less than wall times. Then a copy of the BERT is submitted as a new job
while all workers compute. The memory is the proportional set size (PSS) of all processes that have imported torch, divided by
the number of workers: a page that several processes share counts once. The script prints medians of ``--repeats``::

    python benchmarks/cold_start.py [--workers 2] [--repeats 5] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

import inference_models
from chimera.inference.client import Client
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.models import read

LIBRARIES = ("torch", "transformers", "safetensors")
LOOK_S = 0.02  # seconds between two checks for a result


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[Client, int]]:
    """Run a cluster; return its client when it accepts jobs, and the process of ``chimera infer up``."""
    command = [sys.executable, "-m", "chimera", "infer", "up", "--workers", str(workers), "--cluster", str(folder)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    up = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | one_thread)
    try:
        while not (folder / "token").exists() or not (folder / "leader").exists():
            time.sleep(0.02)
        yield ClusterFolder(folder).client(), up.pid
    finally:
        up.terminate()
        up.wait()


def first_results_s(client: Client, jobs: list[str], since_s: float) -> list[float]:
    """Wait until each job has a result; return the seconds until then."""
    found: dict[str, float] = {}
    while len(found) < len(jobs):
        for job in jobs:
            if job not in found and client.job(job)["finished"]:
                found[job] = time.monotonic() - since_s
        time.sleep(LOOK_S)
    return [found[job] for job in jobs]


def image(place: Path) -> Path:
    """Return the file of an image, which is written if it is missing."""
    file = place / "image.png"
    if not file.exists():
        Image.fromarray(inference_models.queries("vit", 1)[0]).save(file)
    return file.resolve()


def cpu_s(up: int) -> float:
    """Return the CPU seconds of all processes of a cluster."""
    root = psutil.Process(up)
    return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))


def memory_mb(up: int) -> float:
    """Return the proportional set size of the processes of a cluster that have imported torch."""
    found = 0.0
    for process in psutil.Process(up).children(recursive=True):
        place = Path(f"/proc/{process.pid}")
        if "libtorch" in (place / "maps").read_text():
            lines = dict(line.split(":", 1) for line in (place / "smaps_rollup").read_text().splitlines()[1:])
            found += int(lines["Pss"].split()[0]) / 1024
    return found


def measured(place: Path, workers: int, dtype: str) -> dict[str, float]:
    """Start a cluster and submit the jobs; return the figures by name."""
    tables = {name: table | {"dtype": dtype} for name, table in inference_models.write(place).items()}
    queries = {"vit": [str(image(place))] * 800, "bert": inference_models.queries("bert", 800)}
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        new = shutil.copytree(place / "bert", Path(name) / "new")
        began_s = time.monotonic()
        with cluster(Path(name) / "cluster", workers) as (client, up):
            found["accepts jobs, s"] = time.monotonic() - began_s
            jobs = [client.submit(table, queries[model]) for model, table in tables.items()]
            first = first_results_s(client, jobs, began_s)
            found["CPU until then, s"] = cpu_s(up)
            found |= {f"first result of {model}, s": each for model, each in zip(tables, first, strict=True)}
            while any(row["models"] < len(tables) for row in client.rows("workers")):
                time.sleep(0.1)
            time.sleep(5)
            found["memory per worker, MB"] = memory_mb(up) / workers
            table: dict[str, Any] = read(
                {"kind": "transformers", "task": "fill-mask", "model": str(new), "dtype": dtype}
            )
            began_s = time.monotonic()
            (found["new job, s"],) = first_results_s(client, [client.submit(table, queries["bert"])], began_s)
            for job in jobs:
                client.cancel(job)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="auto", help="type of the weights; other than auto, they are converted")
    parser.add_argument("--models", type=Path, default=Path("runs/inference-models"))
    options = parser.parse_args()
    versions = ", ".join(f"{library} {version(library)}" for library in LIBRARIES)
    print(f"Python {platform.python_version()}, {versions}, {os.cpu_count()} cores, {options.workers} workers")
    runs = [measured(options.models, options.workers, options.dtype) for _ in range(options.repeats)]
    for name in runs[0]:
        values = sorted(run[name] for run in runs)
        print(f"{name:28} {statistics.median(values):8.2f}   ({values[0]:.2f} to {values[-1]:.2f})")


if __name__ == "__main__":
    main()
