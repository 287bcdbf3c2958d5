"""The stall of training at a checkpoint, with a large model on the local engine.

For each optimizer, runs of a parameter server with two workers alternate: one with a checkpoint every few rounds, one without
any but the last. The script reports the time in which the driver collects the state, before it continues while a thread writes;
the seconds that a checkpoint adds to the run in all, and their share of a minute; the time of the write; the size of the file;
and the peak of the driver's own memory. Run it on an idle machine::

    python benchmarks/checkpoints.py [--parameters 100] [--optimizers sgd adam] [--turns 3] [--folder DIR]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import chimera
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.run.loop import TrainingLoop

INPUTS, OUTPUTS, ROWS, WORKERS, BATCH = 1000, 10, 64, 2, 4
ROUNDS, EVERY = 24, 8
NEVER = 10**9
MILLION = int(os.environ.setdefault("CHECKPOINTS_MILLIONS", "100"))


class Timed:
    """The seconds of a method's calls, and the private memory of this process at their ends."""

    def __init__(self, owner: type, name: str) -> None:
        self.seconds: list[float] = []
        self.memory: list[int] = []
        method = getattr(owner, name)

        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds.append(time.perf_counter() - began)
                self.memory.append(psutil.Process().memory_full_info().uss)

        setattr(owner, name, timed)


class Clock(chimera.Callback):
    """The time from the first row of metrics, which ends the first round, to the last."""

    def __init__(self) -> None:
        self.rows: list[float] = []

    def on_progress(self, progress: chimera.Progress) -> None:  # noqa: ARG002 - the signature of the hook
        self.rows.append(time.perf_counter())


def network():
    """Return a network with about as many million parameters as the environment says."""
    import torch

    hidden = MILLION * 1_000_000 // (INPUTS + OUTPUTS + 1)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, OUTPUTS))


def arrays():
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, INPUTS), np.float32), rng.integers(0, OUTPUTS, ROWS)


def run(folder: Path, optimizer: str, every: int) -> tuple[float, int]:
    """Return the seconds from the first round to the last, and the size of a checkpoint."""
    clock = Clock()
    data = arrays()
    chimera.train(
        network,
        (data, data),
        workers=WORKERS,
        batch_size=BATCH,
        rounds=ROUNDS,
        log_every=1,
        evaluate_every=NEVER,
        snapshot_every=NEVER,
        checkpoint_every=every,
        optimizer={"name": optimizer, "lr": 1e-4},
        callbacks=[clock],
        progress=False,
        worker_timeout_s=600.0,
        out=folder,
    )
    # The last row is that of the end, after the last round and its evaluation.
    seconds = clock.rows[ROUNDS - 2] - clock.rows[0]
    return seconds, max(path.stat().st_size for path in (folder / "checkpoints").iterdir())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=MILLION, metavar="MILLIONS")
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adam"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", help="parent of the folders of the runs; default: the system's temporary folder")
    options = parser.parse_args()
    if options.parameters != MILLION:  # a new program: the actors import this file, too
        os.environ["CHECKPOINTS_MILLIONS"] = str(options.parameters)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    collected, written = Timed(TrainingLoop, "_checkpoint"), Timed(Checkpoints, "write_content")
    between = ROUNDS // EVERY - 1  # checkpoints before the last round
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("chimera-dml", "torch", "numpy"))
    print(f"{MILLION} M parameters, {WORKERS} workers, {os.cpu_count()} processors, {platform.platform()}, {versions}")
    for optimizer in options.optimizers:
        stalls, writes, added, sizes, memory = [], [], [], [], []
        for _ in range(options.turns):
            seconds = {}
            for every in (EVERY, NEVER):
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    seconds[every], size = run(Path(folder) / "run", optimizer, every)
                if every == EVERY:
                    stalls += collected.seconds[:between]
                    writes += written.seconds[:between]
                    memory += written.memory
                    sizes.append(size)
                for timed in (collected, written):
                    timed.seconds.clear()
                    timed.memory.clear()
            added.append((seconds[EVERY] - seconds[NEVER]) / between)
        stall, more = statistics.median(stalls), statistics.median(added)
        print(
            f"{optimizer:5}  stall {1e3 * stall:6.0f} ms ({stall / 0.6:.2f} % of a minute), at most {1e3 * max(stalls):.0f} ms;"
            f"  added in all {1e3 * more:6.0f} ms ({more / 0.6:.2f} %);  write {statistics.median(writes):5.1f} s;"
            f"  file {statistics.median(sizes) / 1e9:.2f} GB;  driver's memory {max(memory) / 1e9:.2f} GB"
        )


if __name__ == "__main__":
    main()
