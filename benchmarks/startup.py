"""Start times, from the command to the first step and of eight workers, and memory of the workers.

python benchmarks/startup.py [--turns 5]
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

import psutil

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.toml"
WORKERS = 8

COMMAND = """
import sys, time
from chimera.training.progress.callback import Callback
from chimera.training.experiment.experiment import Experiment

class First(Callback):
    def on_progress(self, progress):
        if progress.rounds == 1:
            print(time.time(), flush=True)

settings = ["train.rounds=2", "train.log_every=1", *sys.argv[3:]]
Experiment.load(sys.argv[1]).with_settings(settings).trainer(callbacks=[First()], out=sys.argv[2]).fit()
"""


class Pid:
    """An actor to start."""

    def pid(self) -> int:
        """Return the id of its process."""
        return os.getpid()


def command_to_first_step(*settings: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        command = [sys.executable, "-c", COMMAND, str(EXAMPLE), f"{folder}/run", *settings]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(printed.split()[0]) - began


def import_of_torch() -> float:
    code = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def eight_workers() -> tuple[float, float]:
    """Return seconds from the first spawn to the last answer, and the largest PSS in MB, with torch imported already."""
    from chimera.engines.local import Local

    with Local(preload=["torch", "chimera.training.worker.learner"]) as engine:
        engine.get(engine.spawn(Pid).pid())  # the fork server has imported torch once this has answered
        began = time.perf_counter()
        pids = engine.get([actor.pid() for actor in [engine.spawn(Pid) for _ in range(WORKERS)]])
        seconds = time.perf_counter() - began
        return seconds, max(psutil.Process(pid).memory_full_info().pss for pid in pids) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    first, packed, torch, workers = [], [], [], []
    for _ in range(turns):
        first.append(command_to_first_step())
        packed.append(command_to_first_step("codec=int8", "train.workers=8"))
        torch.append(import_of_torch())
        workers.append(eight_workers())
    print(f"medians of {turns} repetitions, {os.cpu_count()} processors")
    print(
        f"command to first step  {statistics.median(first):6.2f} s, of which importing torch {statistics.median(torch):.2f} s"
    )
    print(f"with eight workers and codec int8 {statistics.median(packed):6.2f} s")
    print(f"eight workers          {statistics.median(s for s, _ in workers):6.3f} s after torch is imported")
    print(f"                       {statistics.median(pss for _, pss in workers):6.1f} MB each at most (PSS)")


if __name__ == "__main__":
    main()
