"""Gradient coding with stragglers: run coding.toml with four strategies, and draw docs/images/coding-compared.png.

Two of six workers are ten times as slow. The picture shows the accuracy over virtual time, and the times at which each worker
computes. With `parameter-server` four workers wait for two; with `gradient-coding` no worker waits.

    python examples/coding.py [--picture coding_compared.png]

Takes about 25 s on two cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

import chimera

EXPERIMENT = Path(__file__).with_name("coding.toml")
STRATEGIES: dict[str, dict[str, Any]] = {
    "parameter-server": {},
    "gradient-coding": {"stragglers": 2},
    "replicated": {"copies": 3},
    "approximate-coding": {"stragglers": 2},
}
SHOWN_S = 1.0
"""Virtual seconds from the start that the timelines show."""


def draw_timeline(axes: Any, run: chimera.Run) -> None:
    """Draw a timeline with a row for each worker, and mark the steps of the servers."""
    for line in (run.run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind, _, number = row["actor"].partition(" ")
        if row["start_s"] < SHOWN_S and row.get("samples"):
            axes.barh(
                int(number), row["end_s"] - row["start_s"], left=row["start_s"], height=0.7, color="#0072B2", ec="white"
            )
        elif row["start_s"] < SHOWN_S and kind == "server" and row["call"] in ("update", "combine"):
            axes.axvline(row["end_s"], color="#D55E00", linewidth=1)
    axes.set(xlim=(0, SHOWN_S), xlabel="Virtual seconds", ylabel="Worker", yticks=range(6))
    axes.invert_yaxis()


def main() -> None:
    """Run the experiment with each strategy, and draw the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", type=Path, default=Path("coding_compared.png"))
    picture = parser.parse_args().picture
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    curves, *timelines = figure.subplot_mosaic([["curves", "curves"], ["waits", "coded"]]).values()
    titles = ("parameter-server: a step when all have answered", "gradient-coding: a step when any four have")
    with TemporaryDirectory() as folder:
        for name, options in STRATEGIES.items():
            experiment = chimera.Experiment.load(EXPERIMENT).with_table("strategy", {"name": name, **options})
            run = experiment.trainer(out=Path(folder) / name, evaluate_every=5).fit()
            evaluations = [row for row in run.rows if "accuracy" in row]
            wide = 5 if name == "gradient-coding" else 1.5  # `replicated` has equal weights and is drawn over it
            seconds, accuracy = zip(*((row["seconds"], row["accuracy"]) for row in evaluations), strict=True)
            curves.plot(seconds, accuracy, linewidth=wide, label=name)
            print(f"{name}: accuracy {run.metrics['accuracy']:.3f} after {evaluations[-1]['seconds']:.1f} s")
            if len(curves.lines) <= len(timelines):
                draw_timeline(timelines[len(curves.lines) - 1], run)
    for axes, title in zip(timelines, titles, strict=True):
        axes.set_title(title, fontsize=10)
    curves.set(xlabel="Virtual seconds", ylabel="Accuracy on the test set")
    curves.legend(loc="lower right", frameon=False)
    figure.savefig(picture, dpi=100)
    print(picture)


if __name__ == "__main__":
    main()
