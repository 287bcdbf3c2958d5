"""Predictions of ``chimera predict`` against real runs: time per round, its tail, time to a target, and rankings.

Two settings with one batch size each calibrate the engine `local`. Two more, and one with a single worker, calibrate the engine
`ray` between network namespaces with slow links. Held-out settings are predicted. The speed of a machine changes, so all
settings are really run in turns, the calibrated ones too, and medians count. The script prints predictions and measurements,
with the least and the largest of the turns. The runs between namespaces need Linux, root, iproute2 and iptables. Run it on an
idle machine::

    python benchmarks/prediction.py [--turns 3] [--rounds 2000] [--slow-rounds 120] [--only local slow] [--folder DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from chimera.calibration.calibration import Calibration, calibrate
from chimera.calibration.measured_run import MeasuredRun, read_measured
from chimera.calibration.prediction import Interval, Predicted, predict
from chimera.training.experiment.experiment import Experiment
from slow_links import MAX_RUN_S, QUIET, ray_cluster
from slow_links_network import Inside, Link, Machines, permitted

TARGET = 0.85
CODECS = "top-k:ratio=0.01", "int8", "powersgd:rank=2"
LINK = Link(100, 20)
GOALS = {"round": 0.10, "p95": 0.20, "target": 0.15}

Train = Callable[[Sequence[str], Path], None]


class Setting(NamedTuple):
    """One run: its name, its engine, and its differences from the experiment."""

    name: str
    link: str
    settings: tuple[str, ...]


def setting(name: str, link: str, *settings: str) -> Setting:
    return Setting(name, link, settings)


CALIBRATED = [
    setting(f"{link}, batch {size}", link, f"train.batch_size={size}")
    for link in ("local", "slow")
    for size in (32, 128)
]
CALIBRATED.append(setting("slow, 1 worker", "slow", "train.workers=1"))  # its rounds have other sizes of messages
HELD_OUT = [
    setting("local, batch 64", "local", "train.batch_size=64"),
    setting("local, batch 256", "local", "train.batch_size=256"),
    setting("local, 1 worker", "local", "train.workers=1"),
    setting("local, 4 workers", "local", "train.workers=4"),
    setting("local, top-k", "local", 'codec={name="top-k", ratio=0.01}'),
    setting("local, int8", "local", "codec=int8"),
    setting("local, async", "local", "strategy=async-parameter-server"),
    setting("local, async, int8", "local", "strategy=async-parameter-server", "codec=int8"),
    setting("local, all-reduce", "local", "strategy=all-reduce"),
    setting("slow, batch 64", "slow", "train.batch_size=64"),
    setting("slow, int8", "slow", "codec=int8"),
    setting("slow, async", "slow", "strategy=async-parameter-server"),
]
RANKED = [
    setting(f"{link}, {strategy}, {codec}", link, f"strategy={strategy}", f"codec={codec}")
    for link in ("local", "slow")
    for strategy in ("parameter-server", "async-parameter-server", "all-reduce")
    for codec in ("identity", "int8", '{name="powersgd", rank=2}')
    if (strategy, codec) != ("all-reduce", "int8")  # its messages cannot be added
]


def experiment(rounds: int) -> Experiment:
    """Return the experiment without the settings that vary."""
    return Experiment(
        {
            "data": "digits",
            "model": {"name": "mlp", "hidden": [512]},
            "train": {
                "workers": 2,
                "batch_size": 64,
                "rounds": rounds,
                "evaluate_every": max(rounds // 6, 10),  # each evaluation empties the pipeline of an asynchronous run
                "log_every": max(rounds // 6, 10),
                "checkpoint_every": rounds,
                "optimizer": {"name": "sgd", "lr": 0.1},
                "seed": 1,
            },
            "strategy": "parameter-server",
        }
    )


def run(
    one: Setting, experiments: dict[str, Experiment], trains: dict[str, Train], folder: Path, turn: int
) -> MeasuredRun:
    """Run a setting in a turn, unless its folder exists already."""
    out = folder / f"{one.name.replace(', ', '--').replace(' ', '-')}--{turn}"
    if not (out / "summary.json").is_file():
        file = folder / f"{out.name}.toml"
        file.write_text(experiments[one.link].with_settings(one.settings).to_toml())
        trains[one.link]([str(file), "--out", str(out), "--quiet"], folder)
    return read_measured(out)


def train_here(arguments: Sequence[str], folder: Path) -> None:
    command = [sys.executable, "-m", "chimera", "train", *arguments]
    subprocess.run(
        command, check=True, cwd=folder, env={**os.environ, **QUIET}, stdout=subprocess.DEVNULL, timeout=MAX_RUN_S
    )


@contextlib.contextmanager
def slow_links(machines_in_all: int) -> Iterator[Train]:
    """Start Ray between namespaces with slow links; yield a function that trains with the driver on the first machine."""
    with Machines(machines_in_all) as machines:
        machines.shape(Link(0, 0))
        with ray_cluster(machines) as address:
            machines.shape(LINK)
            checked = machines.check()
            print(f"{LINK}: a stream has {checked.mbit_s:.0f} Mbit/s, a byte returns in {checked.round_trip_ms:.1f} ms")

            def train(arguments: Sequence[str], folder: Path) -> None:  # noqa: ARG001 - all paths are absolute
                own = ("--set", f'engine={{name="ray", address="{address}", placement="spread"}}', "--json")
                process = Inside(machines, "m0", "chimera", "train", *arguments, *own, CHIMERA_MACHINE="m0", **QUIET)
                try:
                    process.wait(1, MAX_RUN_S)
                finally:
                    process.kill()

            yield train


def target_s(measured: MeasuredRun) -> float:
    """Return the seconds until the run first had the target; NaN if it never had."""
    rows = (row["seconds"] for row in measured.files.metrics if row.get("accuracy", 0.0) >= TARGET)
    return float(next(rows, np.nan))


def figures(one: Setting, measured: MeasuredRun) -> tuple[float, float, float]:
    """Return the seconds of a round, of the 95th percentile of rounds, and to the target.

    The gradients of two asynchronous workers alternate between short and long gaps, so the mean of their rounds counts.
    """
    rounds_s = measured.seconds_of_rounds()[0]
    usual_s = np.mean(rounds_s) if "async" in one.name else np.median(rounds_s)
    return float(usual_s), float(np.percentile(rounds_s, 95)), target_s(measured)


def compare(one: Setting, runs: Sequence[MeasuredRun], predicted: Predicted) -> list[float]:
    """Print a row, and return the relative errors of round, tail and time to the target."""
    mean_s = predicted.round_mean_s
    usual = Interval(mean_s, mean_s, mean_s) if "async" in one.name else predicted.round_s
    cells, errors = [], []
    for turns, found in zip(
        np.transpose([figures(one, each) for each in runs]),
        (usual, predicted.round_p95_s, predicted.target_s),
        strict=True,
    ):
        real = float(np.median(turns))
        errors.append(np.nan if found is None else found.median / real - 1)
        text = "-" if found is None else f"{1e3 * found.median:.2f} ({1e3 * found.low:.2f} to {1e3 * found.high:.2f})"
        least, largest = 1e3 * min(turns), 1e3 * max(turns)
        cells.append(f"{1e3 * real:.2f} ({least:.2f} to {largest:.2f}) | {text} | {100 * errors[-1]:+.0f} %")
    print(f"| {one.name} | {' | '.join(cells)} | {'; '.join(predicted.notes)} |", flush=True)
    return errors


def predicted(one: Setting, experiments: dict[str, Experiment], calibrations: dict[str, Calibration]) -> Predicted:
    varied = experiments[one.link].with_settings([*one.settings, f"train.target={{accuracy={TARGET}}}"])
    (found,) = predict(varied, calibrations[one.link])
    return found


def rank(settings: Sequence[Setting], real: Sequence[float], found: Sequence[float]) -> None:
    """Print the pairs whose predicted order was wrong, and the number of pairs that differ by over 10 %."""
    differ = wrong = 0
    for i, j in combinations(range(len(settings)), 2):
        if max(real[i], real[j]) <= 1.1 * min(real[i], real[j]):
            continue
        differ += 1
        if (real[i] < real[j]) != (found[i] < found[j]):
            wrong += 1
            print(
                f"wrong order: {settings[i].name} ({1e3 * real[i]:.1f} ms an epoch, predicted {1e3 * found[i]:.1f})"
                f" and {settings[j].name} ({1e3 * real[j]:.1f}, predicted {1e3 * found[j]:.1f})"
            )
    print(f"{differ - wrong} of {differ} pairs that differ by over 10 % have the predicted order")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--slow-rounds", type=int, default=120)
    parser.add_argument("--only", nargs="+", choices=("local", "slow"), default=("local", "slow"))
    parser.add_argument("--no-ranking", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep the runs here, and use runs that are there")
    args = parser.parse_args()
    if "slow" in args.only and not permitted():
        sys.exit("runs on slow links need network namespaces: Linux, root, iproute2 and iptables; or --only local")
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and their processes end too
    experiments = {"local": experiment(args.rounds), "slow": experiment(args.slow_rounds)}
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chimera-prediction-")))
        folder.mkdir(exist_ok=True)
        trains: dict[str, Train] = {"local": train_here}
        if "slow" in args.only:
            trains["slow"] = stack.enter_context(slow_links(3))  # for the server and each worker
        measure(args, experiments, trains, folder.resolve())


def measure(args: Any, experiments: dict[str, Experiment], trains: dict[str, Train], folder: Path) -> None:
    """Run, calibrate, predict, and print."""
    settings = [*CALIBRATED, *HELD_OUT, *(() if args.no_ranking else RANKED)]
    runs: dict[str, list[MeasuredRun]] = {one.name: [] for one in settings if one.link in args.only}
    for turn in range(args.turns):
        for one in settings:
            if one.name in runs:
                runs[one.name].append(run(one, experiments, trains, folder, turn))
    calibrations = {}
    for link in args.only:
        used = [each.files.folder for one in CALIBRATED if one.link == link for each in runs[one.name]]
        calibrations[link] = calibrate(used, codecs=CODECS)
        values = (f"{name} {value:.3g}" for name, value in calibrations[link].values.items())
        print(f"{link}: {', '.join(values)}; load {os.getloadavg()[0]:.1f}")
    columns = "setting", *(f"{what}, ms | predicted | error" for what in ("round", "p95", "target")), "notes"
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * 11}")
    errors = [
        compare(one, runs[one.name], predicted(one, experiments, calibrations))
        for one in HELD_OUT
        if one.link in args.only
    ]
    for (name, goal), column in zip(GOALS.items(), np.abs(np.transpose(errors)), strict=True):
        known = column[np.isfinite(column)]
        median = float(np.median(known)) if len(known) else np.nan
        print(f"{name}: median error {100 * median:.0f} %, goal {100 * goal:.0f} %")
    ranked = [one for one in RANKED if one.name in runs]
    if ranked:
        rank_all(ranked, runs, experiments, calibrations)


def rank_all(
    ranked: Sequence[Setting],
    runs: dict[str, list[MeasuredRun]],
    experiments: dict[str, Experiment],
    calibrations: dict[str, Calibration],
) -> None:
    """Print the seconds of an epoch of each setting, measured and predicted, and compare the orders."""
    real, guessed = [], []
    for one in ranked:
        summary = runs[one.name][0].files.summary
        epochs = summary["epochs"] / summary["rounds"]  # of a round
        turns = [float(np.mean(each.seconds_of_rounds()[0])) / epochs for each in runs[one.name]]
        (found,) = predict(experiments[one.link].with_settings(one.settings), calibrations[one.link], draws=3)
        real.append(float(np.median(turns)))
        guessed.append(found.round_mean_s / epochs)
        text = ", ".join(f"{1e3 * value:.1f}" for value in turns)
        print(f"{one.name}: {1e3 * real[-1]:.1f} ms an epoch ({text}), predicted {1e3 * guessed[-1]:.1f}", flush=True)
    rank(ranked, real, guessed)


if __name__ == "__main__":
    main()
