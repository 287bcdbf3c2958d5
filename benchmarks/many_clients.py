"""Cost of clients that do not participate, and of clients of one process that take their local steps together.

Population: FedAvg on the engine ``simulated`` with 100 participants a round, of 1,000, 10,000 and 100,000 clients that have
ten rows each. A small network is trained. The table shows the seconds from the call of `chimera.train` until the first
round is over, the time of a later round, the peak memory, and the seconds after the last round: the checkpoint, the trace and
the report have entries for every client.

Together: the option ``batched`` of FedAvg, ``off`` and ``auto``, with five local steps on batches of ten rows, and the largest
difference of a weight at the end. ``auto`` takes steps together only with small dense networks; the last model is larger.

The variants alternate, each in a separate process. The table shows medians over the repetitions and, after ±, half the range
of the times of a round relative to its median. Processor time depends less on other processes than wall time.

    python benchmarks/many_clients.py [--turns 5] [--quick] [--only population together]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

PARTICIPANTS, ROUNDS = 100, 20
CLIENTS = 1_000, 10_000, 100_000
MODELS: dict[str, tuple[Any, str, int]] = {
    "logistic regression, MNIST": ("logistic-regression", "mnist", 1000),
    "network of 32, MNIST": ({"name": "mlp", "hidden": [32]}, "mnist", 1000),
    "network of 32, digits": ({"name": "mlp", "hidden": [32]}, "digits", 100),
    "network of 128 and 128, MNIST": ("mlp", "mnist", 1000),
}
"""Name → model, data, clients."""


def trained(model: Any, data: Any, clients: int, rounds: int, **options: Any) -> dict[str, Any]:
    """Train, and return times, memory and weights."""
    import chimera

    class Stamps(chimera.Callback):
        def __init__(self) -> None:
            self.times: list[tuple[float, float]] = []

        def on_progress(self, _: Any) -> None:
            self.times.append((time.perf_counter(), time.process_time()))

    stamps, began = Stamps(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = chimera.train(
            model,
            data,
            engine="simulated",
            workers=clients,
            optimizer={"name": "sgd", "lr": 0.1},
            batch_size=10,
            rounds=rounds,
            evaluate_every=rounds,
            log_every=1,
            progress=False,
            out=Path(folder) / "run",
            callbacks=[stamps],
            **options,
        )
        ended = time.perf_counter()
    spans = np.diff(np.array(stamps.times[:-1]), axis=0)  # the last round ends with the evaluation
    return {
        "first_s": stamps.times[0][0] - began,
        "round_ms": float(np.median(spans[:, 0])) * 1e3,
        "round_cpu_ms": float(np.mean(spans[:, 1])) * 1e3,
        "end_s": ended - stamps.times[-1][0],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "weights": run.trained.parameters().tolist(),
    }


def of_population(clients: int, rounds: int) -> dict[str, Any]:
    from chimera.data.dataset import Dataset

    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((10 * clients, 20), np.float32)
    data = Dataset(inputs, rng.integers(0, 10, len(inputs)), tuple("0123456789"))
    test = Dataset(inputs[:500], data.targets[:500], data.classes)
    strategy = {"name": "fed-avg", "local_steps": 5, "fraction": PARTICIPANTS / clients}
    model = {"name": "mlp", "hidden": [32]}
    return trained(model, (data, test), clients, rounds, strategy=strategy, partition="contiguous")


def together(name: str, batched: str, rounds: int) -> dict[str, Any]:
    model, data, clients = MODELS[name]
    strategy = {"name": "fed-avg", "local_steps": 5, "fraction": PARTICIPANTS / clients, "batched": batched}
    return trained(model, data, clients, rounds, strategy=strategy, partition="contiguous")


def measured(what: str, *given: Any) -> dict[str, Any]:
    """Return the figures of a variant, measured in a separate process."""
    command = [sys.executable, __file__, "--inside", what, *map(str, given)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{what} {given}: {process.stderr[-2000:]}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


def median(found: list[dict[str, Any]], key: str) -> float:
    return statistics.median(each[key] for each in found)


def spread(found: list[dict[str, Any]], key: str) -> float:
    values = [each[key] for each in found]
    return (max(values) - min(values)) / 2 / statistics.median(values)


def report_population(turns: int, rounds: int) -> None:
    found: dict[int, list[dict[str, Any]]] = {clients: [] for clients in CLIENTS}
    for _ in range(turns):
        for clients in CLIENTS:
            found[clients].append(measured("population", clients, rounds))
    print(
        "| clients | until the first round is over, s | a round, ms | of processor time, ms | ratio | peak, MB | end, s |"
    )
    print("|---|---|---|---|---|---|---|")
    for clients, each in found.items():
        ratio = median(each, "round_cpu_ms") / median(found[CLIENTS[0]], "round_cpu_ms")
        wall, cpu = (f"{median(each, key):.1f} ± {spread(each, key):.0%}" for key in ("round_ms", "round_cpu_ms"))
        first, memory, end = (median(each, key) for key in ("first_s", "memory", "end_s"))
        print(f"| {clients} | {first:.1f} | {wall} | {cpu} | {ratio:.2f} | {memory / 1e6:.0f} | {end:.1f} |")


def report_together(turns: int, rounds: int) -> None:
    print("| model and data | alone, ms of processor time a round | together | times faster | largest difference |")
    print("|---|---|---|---|---|")
    for name in MODELS:
        found: dict[str, list[dict[str, Any]]] = {"off": [], "auto": []}
        for turn in range(turns):
            for batched in sorted(found, reverse=turn % 2 == 1):
                found[batched].append(measured("together", name, batched, rounds))
        alone, both = (
            f"{median(each, 'round_cpu_ms'):.1f} ± {spread(each, 'round_cpu_ms'):.0%}" for each in found.values()
        )
        faster = median(found["off"], "round_cpu_ms") / median(found["auto"], "round_cpu_ms")
        weights = [np.array(each[0]["weights"]) for each in found.values()]
        print(f"| {name} | {alone} | {both} | {faster:.2f} | {np.abs(weights[0] - weights[1]).max():.0e} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", nargs="+", choices=["population", "together"], default=["population", "together"])
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        what, *given, rounds = arguments.inside
        found = of_population(int(given[0]), int(rounds)) if what == "population" else together(*given, int(rounds))
        print(json.dumps(found))
        return
    rounds = 6 if arguments.quick else ROUNDS
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, torch {version('torch')}"
    )
    if "population" in arguments.only:
        report_population(arguments.turns, rounds)
    if "together" in arguments.only:
        report_together(arguments.turns, rounds)


if __name__ == "__main__":
    main()
