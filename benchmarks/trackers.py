"""Processor time that experiment trackers take: at the start of a run, and for each row of metrics.

For each turn and tracker, a new process trains a small model in virtual time three times: one round, with the import of the
tracker's library; one round again; and many rounds with a row each. The times of the same runs without a tracker are
subtracted. The script measures the processor time of the process and its children, on which other programs on the machine have
little effect. Turns alternate between trackers. The script prints medians over the turns, and the share of a run of one and of
ten minutes that records 100 rows, the default for the shortest budget. All trackers write to a temporary folder, with no
server::

    python benchmarks/trackers.py [--turns 5] [--rows 500] [--trackers tensorboard mlflow wandb trackio]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import psutil

import chimera

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb", "trackio": "trackio"}
ROWS_OF_A_RUN = 100


def processor_seconds() -> float:
    """Return the processor time of this process and its living children."""
    seconds = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        seconds += times.user + times.system
    return seconds


def fit(tracker: str, rounds: int, folder: Path) -> float:
    """Train with a tracker, or with none if its name is empty; return processor seconds."""
    began = processor_seconds()
    chimera.Trainer(
        {"name": "sklearn-sgd-classifier", "loss": "log_loss"}, "digits", engine="simulated", workers=2, batch_size=16,
        rounds=rounds, log_every=1, evaluate_every=max(rounds // 10, 1), optimizer={"name": "sgd", "lr": 0.1},
        out=folder, track=[tracker] if tracker else [],
    ).fit()  # fmt: skip
    return processor_seconds() - began


def measure(tracker: str, rows: int) -> None:
    """Print the processor seconds of three runs as JSON."""
    warnings.simplefilter("ignore")
    folder = Path.cwd()
    fit("", 1, folder / "warm")  # imports the modules that all runs need
    print(json.dumps([fit(tracker, rounds, folder / str(number)) for number, rounds in enumerate((1, 1, rows))]))


def importable(tracker: str) -> bool:
    """Return whether the library of a tracker can be imported in a new process; print the reason if not."""
    done = subprocess.run([sys.executable, "-c", f"import {tracker}"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{tracker}: left out: {done.stderr.splitlines()[-1]}")
    return done.returncode == 0


def measured(tracker: str, rows: int) -> tuple[float, float]:
    """Return the processor seconds of the start in a new process, and of a row."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }
        environment |= {"TRACKIO_DIR": f"{folder}/trackio", "WANDB_MODE": "offline"}
        command = [sys.executable, Path(__file__).resolve(), "--one", tracker, "--rows", str(rows)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        first, again, many = json.loads(done.stdout.splitlines()[-1])
    return first, (many - again) / (rows - 1)


def main() -> None:
    """Measure all trackers in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--trackers", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        measure(arguments.one, arguments.rows)
        return
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ("", *filter(importable, arguments.trackers))}
    for _ in range(arguments.turns):
        for name, turns in results.items():
            turns.append(measured(name, arguments.rows))
    base = results.pop("")
    print(
        f"{os.cpu_count()} processors, Python {platform.python_version()}, {arguments.turns} turns of {arguments.rows} rows"
    )
    print(f"{'tracker':24} {'start, s':>9} {'row, ms':>8} {'of 1 min':>9} {'of 10 min':>10}")
    for name, turns in results.items():
        start = statistics.median(one[0] - other[0] for one, other in zip(turns, base, strict=True))
        row = statistics.median(one[1] - other[1] for one, other in zip(turns, base, strict=True))
        shares = [(start + ROWS_OF_A_RUN * row) / seconds for seconds in (60, 600)]
        title = f"{name} {importlib.metadata.version(PACKAGES[name])}"
        print(f"{title:24} {start:9.2f} {1e3 * row:8.2f} {shares[0]:9.2%} {shares[1]:10.2%}")


if __name__ == "__main__":
    main()
