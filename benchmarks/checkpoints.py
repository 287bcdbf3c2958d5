"""The stall of training at a checkpoint, with a large model on the local engine.

For each optimizer, runs of a parameter server with two workers write a checkpoint every few rounds. The script reports:

- the time in which the driver collects the state, before it continues while a thread writes;
- the processor time of all processes in this time;
- the seconds that a checkpoint adds to the run, which include its effect on the rounds after it;
- these figures as a share of a minute;
- the time of the write, the size of the file, and the peak of the driver's own memory.

The first two checkpoints get new memory from the system and are reported separately: later ones use it again. Run it on an idle
machine::

    python benchmarks/checkpoints.py [--parameters 100] [--optimizers sgd adam] [--turns 3] [--folder DIR]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
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
ROUNDS, EVERY, WARM_UP = 48, 8, 2
NEVER = 10**9
MILLION = int(os.environ.setdefault("CHECKPOINTS_MILLIONS", "100"))


class Timed:
    """The wall and processor seconds of a method's calls, and the private memory of this process at their ends."""

    def __init__(self, owner: type, name: str) -> None:
        self.clear()
        method = getattr(owner, name)

        def timed(*args, **kwargs):
            began, worked = time.perf_counter(), processor_seconds()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds.append(time.perf_counter() - began)
                self.worked.append(processor_seconds() - worked)
                self.memory.append(psutil.Process().memory_full_info().uss)

        setattr(owner, name, timed)

    def clear(self) -> None:
        """Forget all calls."""
        self.seconds: list[float] = []
        self.worked: list[float] = []
        self.memory: list[int] = []


def processor_seconds() -> float:
    """Return the processor seconds of this thread and all actors: on a busy machine, fewer than have passed."""
    used = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.thread_time() + sum(each.user + each.system for each in used)


class Clock(chimera.Callback):
    """The time from the first row of metrics, which ends the first round, to the last."""

    def __init__(self) -> None:
        self.rows: list[float] = []

    def on_progress(self, progress: chimera.Progress) -> None:  # noqa: ARG002 - the signature of the hook
        self.rows.append(time.perf_counter())


def network():
    """Return a network with about as many million parameters as the environment variable sets."""
    import torch

    hidden = MILLION * 1_000_000 // (INPUTS + OUTPUTS + 1)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, OUTPUTS))


def arrays():
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, INPUTS), np.float32), rng.integers(0, OUTPUTS, ROWS)


def run(folder: Path, optimizer: str) -> tuple[list[float], int]:
    """Return the seconds that each checkpoint after the warm-up adds, and the size of a file."""
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
        checkpoint_every=EVERY,
        optimizer={"name": optimizer, "lr": 1e-4},
        callbacks=[clock],
        progress=False,
        worker_timeout_s=600.0,
        out=folder,
    )
    added = []
    for first in range(
        (WARM_UP + 1) * EVERY, ROUNDS, EVERY
    ):  # the driver reports a row before the checkpoint of its round
        rows = clock.rows[first - 1 : first + EVERY - 1]
        usual = statistics.median(later - row for row, later in itertools.pairwise(rows[EVERY // 2 :]))
        added.append(rows[-1] - rows[0] - (len(rows) - 1) * usual)
    return added, max(path.stat().st_size for path in (folder / "checkpoints").iterdir())


def shown(seconds: list[float]) -> str:
    """Return the median of these seconds, and its share of a minute."""
    median = statistics.median(seconds)
    return f"{1e3 * median:5.0f} ms ({median / 0.6:.2f} % of a minute)"


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
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("chimera-dml", "torch", "numpy"))
    print(f"{MILLION} M parameters, {WORKERS} workers, {os.cpu_count()} processors, {platform.platform()}, {versions}")
    for optimizer in options.optimizers:
        first, stalls, worked, writes, added, size, memory = [], [], [], [], [], 0, 0
        for _ in range(options.turns):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                more, size = run(Path(folder) / "run", optimizer)
            added += more
            first += collected.seconds[:WARM_UP]
            stalls += collected.seconds[WARM_UP:-1]  # the last checkpoint is that of the end of the run
            worked += collected.worked[WARM_UP:-1]
            writes += written.seconds
            memory = max(memory, *written.memory)
            for timed in (collected, written):
                timed.clear()
        print(
            f"{optimizer:5} stall {shown(stalls)}, at most {1e3 * max(stalls):.0f} ms, of the first two"
            f" {1e3 * max(first):.0f} ms; processor time {shown(worked)}; added in all {shown(added)};"
            f" write {statistics.median(writes):.1f} s; file {size / 1e9:.2f} GB;"
            f" driver's memory {memory / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
