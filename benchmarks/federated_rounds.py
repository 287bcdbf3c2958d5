"""Many clients on the simulated engine: rounds per second of FedAvg and of Flower's simulation, and the cost of 10,000 clients.

Rounds per second: clients that compute nothing send a model of 10,000 parameters, so that only the overhead is measured. In
the variant "a step", clients take a step of SGD with a gradient of zeros; the gradient and the message are checked. Flower's
clients compute nothing either, in its simulation on Ray, in a separate environment (``python3 -m venv flower; flower/bin/pip
install 'flwr[simulation]'``). A bare NumPy loop shows the time of the arithmetic of the mean. The variants alternate, each in a
separate process; the table shows medians over the repetitions. The time of Chimera's rounds is from the start of training to
the last row of metrics: it includes the trace, the requested losses and the last evaluation, but not the last checkpoint.

The large population trains a small network on parts of MNIST by Dirichlet(0.3), in a separate process.

    python benchmarks/federated_rounds.py [--flower flower/bin/python] [--turns 3] [--quick] [--only rounds population]
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
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

PARAMETERS = 10_000
SIZES = {(100, 100): (400, 20), (1000, 100): (400, 12)}
"""(clients, sampled per round) → rounds of Chimera and NumPy, rounds of Flower."""
POPULATION, SAMPLED, ROUNDS = 10_000, 100, 30


class Still:
    """A model whose gradient is zero and takes no time."""

    def __init__(self) -> None:
        from chimera.core.parameters import Layout

        self.layout = Layout(("w",), ((PARAMETERS,),))
        self._flat, self._gradient = np.zeros(PARAMETERS, np.float32), np.zeros(PARAMETERS, np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # received arrays are read-only

    def parameters(self):
        return self._flat

    def load(self, flat) -> None:
        self._flat[:] = flat

    def gradient(self, _):
        return self._gradient, 0.0

    def evaluate(self, _):
        return {"loss": 0.0}

    def predict(self, inputs):
        return np.zeros(len(inputs), np.float32)

    def reseed(self, _) -> None:
        pass

    def buffers(self):
        return np.empty(0, np.float32)

    def load_buffers(self, _) -> None:
        pass


class NoOp(Still):
    """A model with its own local steps, which do nothing."""

    def descend(self, *_):
        return 0.0


def trained(model: Any, data: Any, clients: int, sampled: int, rounds: int, **options: Any) -> dict[str, float]:
    """Return rounds per second of wall time and of processor time, and the seconds until training started."""
    import chimera

    class Stamps(chimera.Callback):
        def on_start(self, _: Any) -> None:
            self.began = time.perf_counter(), time.process_time()

        def on_progress(self, _: Any) -> None:
            self.ended = time.perf_counter(), time.process_time()

    stamps, first = Stamps(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = chimera.train(
            model,
            data,
            strategy={"name": "fed-avg", "local_steps": 1, "fraction": sampled / clients},
            engine="simulated",
            workers=clients,
            optimizer={"name": "sgd", "lr": 0.1},
            rounds=rounds,
            evaluate_every=rounds,
            out=Path(folder) / "run",
            callbacks=[stamps],
            **options,
        )
    seconds, processor_s = (end - begin for begin, end in zip(stamps.began, stamps.ended, strict=True))
    return {
        "start_s": stamps.began[0] - first,
        "rounds_s": rounds / seconds,
        "rounds_cpu_s": rounds / processor_s,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **{key: run.metrics[key] for key in ("accuracy",) if key in run.metrics},
    }


def chimera_rounds(model: type[Still], clients: int, sampled: int, rounds: int) -> dict[str, float]:
    from chimera.data.dataset import Dataset

    data = Dataset(np.zeros((4 * clients, 1), np.float32), np.zeros(4 * clients, np.float32))
    return trained(model(), (data, data), clients, sampled, rounds, batch_size=1)


def numpy_rounds(clients: int, sampled: int, rounds: int) -> dict[str, float]:
    weights, total = np.zeros(PARAMETERS, np.float32), np.empty(PARAMETERS, np.float32)
    began = time.perf_counter()
    for round_ in range(rounds):
        np.random.default_rng([0, round_]).choice(clients, sampled, replace=False)
        total[:] = 0
        for _ in range(sampled):
            total += weights.copy()  # the message of a client
        weights = total / sampled
    return {"rounds_s": rounds / (time.perf_counter() - began)}


def population(clients: int, sampled: int, rounds: int) -> dict[str, float]:
    model = {"name": "mlp", "hidden": [32]}
    options = {"batch_size": 10, "partition": {"name": "dirichlet", "alpha": 0.3}, "seed": 1}
    return trained(model, "mnist", clients, sampled, rounds, **options)


HERE: dict[str, Callable[[int, int, int], dict[str, float]]] = {
    "chimera": partial(chimera_rounds, NoOp),
    "chimera, a step": partial(chimera_rounds, Still),
    "numpy": numpy_rounds,
    "population": population,
}


def measured(variant: str, sizes: tuple[int, int, int], flower: str | None = None) -> dict[str, Any]:
    """Return the figures of a variant, measured in a separate process."""
    if variant == "flower":
        command = [flower, Path(__file__).parent / "flower" / "federated_rounds.py", *sizes, PARAMETERS]
    else:
        command = [sys.executable, __file__, "--inside", variant, *sizes]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    quiet["RAY_worker_niceness"] = "0"  # the default, 15, yields to any other process; Chimera's process has 0
    process = subprocess.run(list(map(str, command)), env={**os.environ, **quiet}, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{variant}: {process.stderr[-2000:]}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


def compare_rounds(flower: str | None, turns: int, quick: bool) -> None:
    variants = ["chimera", "chimera, a step", "numpy", *(["flower"] if flower else [])]
    print("| clients | sampled | | rounds/s | of processor time | until the first round, s | times Flower |")
    print("|---|---|---|---|---|---|---|")
    versions: dict[str, str] = {}
    for (clients, sampled), lengths in SIZES.items():
        ours, theirs = (max(rounds // (8 if quick else 1), 4) for rounds in lengths)
        found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
        for _ in range(turns):
            for variant in variants:
                rounds = theirs if variant == "flower" else ours
                found[variant].append(measured(variant, (clients, sampled, rounds), flower))
        versions = found["flower"][0]["versions"] if flower else {}
        for variant in variants:
            speed = median(found, variant, "rounds_s")
            start = median(found, variant, "first_s" if variant == "flower" else "start_s")
            ratio = speed / median(found, "flower", "rounds_s") if flower else float("nan")
            cells = f"{speed:.2f} | {median(found, variant, 'rounds_cpu_s'):.0f} | {start:.1f} | {ratio:.0f}"
            print(f"| {clients} | {sampled} | {variant} | {cells} |".replace("nan", ""), flush=True)
    print(
        f"Python {platform.python_version()}, NumPy {version('numpy')}; Flower's environment: {versions or 'not given'}"
    )


def median(found: dict[str, list[dict[str, Any]]], variant: str, key: str) -> float:
    return statistics.median(each.get(key, float("nan")) for each in found[variant])


def report_population(quick: bool) -> None:
    found = measured("population", (POPULATION, SAMPLED, max(ROUNDS // (8 if quick else 1), 4)))
    print(
        f"{POPULATION} clients, {SAMPLED} sampled: {1 / found['rounds_s']:.2f} s a round, peak {found['memory'] / 1e9:.2f} GB, "
        f"{found['start_s']:.1f} s until the first round, accuracy {found['accuracy']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flower", metavar="PYTHON", help="the interpreter of the environment with Flower")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", nargs="+", choices=["rounds", "population"], default=["rounds", "population"])
    parser.add_argument("--inside", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        variant, *sizes = arguments.inside
        print(json.dumps(HERE[variant](*map(int, sizes))))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if "rounds" in arguments.only:
        compare_rounds(arguments.flower, arguments.turns, arguments.quick)
    if "population" in arguments.only:
        report_population(arguments.quick)


if __name__ == "__main__":
    main()
