"""Effects that the simulated engine leaves out: shared caches and memory, and Python's lock.

The script computes gradients of the model of `prediction.py`, and adds vectors of 1 to 64 MB, in one process and then in two
at once, each on a processor of its own. It compares processor time, so that waiting for a processor does not count. Then one
thread computes gradients while another one of its process computes in Python, or while another process does. Cases alternate,
and the minimum over all repetitions counts. Run it on an idle machine: with other load no process is alone::

    python benchmarks/prediction_effects.py [--repeats 12]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

BATCHES = 64, 256
MEGABYTES = 1, 4, 16, 64
_SLICE_S = 0.01
_SECONDS_OF_CASE = 0.2

Case = tuple[str, int]


def work_of(case: Case) -> Callable[[], Any]:
    """Return a function that does the work of a case once."""
    kind, size = case
    if kind == "gradient":
        return gradients(size)
    if kind == "python":
        return lambda: sum(range(20_000))
    vector, other = (np.ones(size << 18, np.float32) for _ in range(2))
    return lambda: np.add(vector, other, out=vector)


def gradients(batch_size: int) -> Callable[[], Any]:
    import torch

    from chimera.models.conversion import build_model

    torch.set_num_threads(1)
    model = build_model("mlp", {"hidden": [512]}, input_shape=(64,), outputs=10, task="classification", seed=0)
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(batch_size, 64)).astype(np.float32), rng.integers(0, 10, batch_size)
    return lambda: model.gradient(batch)


def seconds_of_work(work: Callable[[], Any], clock: Callable[[], float], lasts_s: float) -> float:
    """Return the least seconds of the work, over slices of some milliseconds."""
    work()
    found = []
    end_s = time.perf_counter() + lasts_s
    while time.perf_counter() < end_s:
        count, began_s, until_s = 0, clock(), time.perf_counter() + _SLICE_S
        while time.perf_counter() < until_s:
            work()
            count += 1
        found.append((clock() - began_s) / count)
    return min(found)


def serve(pipe: Connection, processor: int) -> None:
    """Measure the cases that arrive, on one processor."""
    os.sched_setaffinity(0, {processor})
    works: dict[Case, Callable[[], Any]] = {}
    while (case := pipe.recv()) is not None:
        if case not in works:
            works[case] = work_of(case)
        pipe.send(seconds_of_work(works[case], time.process_time, _SECONDS_OF_CASE))


class Processes:
    """Two processes on a processor each, which measure cases at once. Use it as a context manager."""

    def __enter__(self) -> Processes:
        context = get_context("spawn")
        processors = sorted(os.sched_getaffinity(0))[:2]
        ends = [context.Pipe() for _ in processors]
        self.pipes = [own for own, _ in ends]
        self._children = [
            context.Process(target=serve, args=(end, each), daemon=True)
            for (_, end), each in zip(ends, processors, strict=True)
        ]
        for child, (_, end) in zip(self._children, ends, strict=True):
            child.start()
            end.close()  # so that the death of a child ends the measurement
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, child in zip(self.pipes, self._children, strict=True):
            pipe.send(None)
            child.join()

    def measure(self, case: Case, count: int = 2) -> float:
        """Return the mean processor seconds of a case in the first ``count`` processes."""
        for pipe in self.pipes[:count]:
            pipe.send(case)
        return float(np.mean([pipe.recv() for pipe in self.pipes[:count]]))


def caches(repeats: int) -> None:
    """Print how much more processor time the same work takes while another process does the same."""
    cases = [*(("gradient", size) for size in BATCHES), *(("vector", size) for size in MEGABYTES)]
    print("| work | alone, ms | beside another process, ms | ratio |\n|---|---|---|---|")
    with Processes() as processes:
        for case in cases:
            processes.measure(case)
            pairs = [(processes.measure(case, 1), processes.measure(case)) for _ in range(repeats)]
            alone, both = (1e3 * min(column) for column in zip(*pairs, strict=True))
            name = f"gradient, batch {case[1]}" if case[0] == "gradient" else f"sum of two vectors of {case[1]} MB"
            print(f"| {name} | {alone:.3f} | {both:.3f} | {both / alone:.2f} |", flush=True)


def spin(stop: Any) -> None:
    while not stop.is_set():
        sum(range(20_000))


def lock(repeats: int) -> None:
    """Print the wall time of a gradient beside a thread, and beside a process, that computes in Python."""
    context = get_context("spawn")
    print(
        "| work | alone, ms | beside a process, ms | beside a thread, ms | ratio of the last two |\n|---|---|---|---|---|"
    )
    for case in (*(("gradient", size) for size in BATCHES), ("python", 0)):
        work = work_of(case)
        rows = []
        for _ in range(max(repeats // 3, 1)):
            row = [seconds_of_work(work, time.perf_counter, _SECONDS_OF_CASE)]
            for kind, event in ((context.Process, context.Event()), (threading.Thread, threading.Event())):
                other = kind(target=spin, args=(event,), daemon=True)
                other.start()
                row.append(seconds_of_work(work, time.perf_counter, 2 * _SECONDS_OF_CASE))
                event.set()
                other.join()
            rows.append(row)
        alone, process, thread = (1e3 * min(column) for column in zip(*rows, strict=True))
        name = f"gradient, batch {case[1]}" if case[0] == "gradient" else "a loop in Python"
        print(f"| {name} | {alone:.3f} | {process:.3f} | {thread:.3f} | {thread / process:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=12)
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two processes at once need two processors")
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    caches(args.repeats)
    lock(args.repeats)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
