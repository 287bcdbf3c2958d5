"""Start time of a job with warm workers: from `chimera.submit`, and from the command, to its first step.

python benchmarks/job_start.py [--turns 9]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chimera
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.session import down, up

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.toml"
FEW = ["train.rounds=20", "train.log_every=1"]
LOOK_S = 0.002


def await_first_step(folder: ClusterFolder, job: str) -> float:
    """Return the time at which the first step of a job was reported, by this process's clock."""
    watch = folder.job(job).watch
    while not watch.exists() or b'{"progress"' not in watch.read_bytes():
        time.sleep(LOOK_S)
    return time.perf_counter()


def from_python(folder: ClusterFolder) -> float:
    began = time.perf_counter()
    job = chimera.submit(EXAMPLE, settings=FEW, cluster=folder.path)
    seconds = await_first_step(folder, job.id) - began
    job.wait(60.0)
    return seconds


def from_the_command(folder: ClusterFolder) -> float:
    settings = [word for setting in FEW for word in ("--set", setting)]
    command = [sys.executable, "-m", "chimera", "submit", str(EXAMPLE), *settings, "--folder", str(folder.path)]
    began = time.perf_counter()
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    job = told.split()[1]
    seconds = await_first_step(folder, job) - began
    chimera.JobHandle(up(folder, Options()), job).wait(60.0)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as place:
        folder = ClusterFolder(Path(place) / "cluster")
        began = time.perf_counter()
        up(folder, Options())
        started = time.perf_counter() - began
        try:
            from_python(folder)  # so that no other measurement includes its imports
            python = [from_python(folder) for _ in range(turns)]
            command = [from_the_command(folder) for _ in range(turns)]
        finally:
            down(folder)
    print(f"medians (and maxima) of {turns} repetitions, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print(f"chimera cluster up                     {started:5.2f} s")
    print(f"chimera.submit to the first step       {statistics.median(python):5.2f} s ({max(python):.2f})")
    print(f"'chimera submit' to the first step     {statistics.median(command):5.2f} s ({max(command):.2f})")


if __name__ == "__main__":
    main()
