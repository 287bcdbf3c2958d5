"""Draw docs/images/readme-light.svg and readme-dark.svg: strategies compared, beside the timeline of a run that loses a worker.

    python docs/readme_picture.py

All runs are on the engine ``simulated``, so the pictures are the same on each machine with the same libraries.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import chimera
from chimera.report.run_files import RunFiles, read_run
from chimera.report.timeline import KINDS

IMAGES = Path(__file__).parent / "images"
COMPARED: dict[str, dict[str, Any]] = {
    "parameter server": {"strategy": "parameter-server", "evaluate_every": 5},
    "parameter server, messages of int8": {
        "strategy": "parameter-server",
        "evaluate_every": 5,
        "codec": {"name": "int8", "downlink": {"name": "int8"}},
    },
    "FedAvg, 5 local steps": {"strategy": {"name": "fed-avg", "local_steps": 5}},
    "DiLoCo, 20 local steps": {"strategy": {"name": "diloco", "local_steps": 20}},
}
NETWORK = {"latency_s": 2e-3, "bandwidth_bytes_s": 5e6}
COMPUTE = {"seconds_per_sample": 1e-3, "straggler_spread": 0.25}
WINDOW_S = 0.4
STYLES: dict[str, dict[str, Any]] = {
    "light": {
        "text": "#1b2026", "soft": "#5a6570", "line": "#dfe3e8", "page": "#ffffff", "lost": "#c1440e",
        "compute": "#0072b2", "transfer": "#e69f00", "wait": "#e1e5ea",
        "curves": ("#0072b2", "#a6508a", "#007a5a", "#cc4c00"),
    },
    "dark": {
        "text": "#e6e9ed", "soft": "#a2acb7", "line": "#343b43", "page": "#0d1117", "lost": "#ff7f50",
        "compute": "#3d9fdc", "transfer": "#f0b429", "wait": "#353c45",
        "curves": ("#56b4e9", "#dd93c4", "#3ecf9b", "#ff9150"),
    },
}  # fmt: skip


def train(folder: Path, **options: Any) -> RunFiles:
    """Run an experiment in virtual time, and return its files."""
    settings = {
        "workers": 4,
        "batch_size": 16,
        "epochs": 12,
        "optimizer": {"name": "adam", "lr": 3e-3},
        "seed": 1,
        **options,
    }
    engine = {"name": "simulated", "network": NETWORK, "compute": COMPUTE}
    model = {"name": "mlp", "hidden": [64]}
    return read_run(chimera.Trainer(model, "digits", engine=engine, out=folder, **settings).fit().run_dir)


def draw_curves(axes: Axes, runs: dict[str, RunFiles], style: dict[str, Any]) -> None:
    """Draw the accuracy of each run over the bytes that its workers sent and received."""
    for (name, run), color in zip(runs.items(), style["curves"], strict=True):
        rows = [row for row in run.metrics if "accuracy" in row and row["round"] > 0]
        sent = [(row["bytes_up"] + row["bytes_down"]) / 1e6 for row in rows]
        axes.plot(sent, [100 * row["accuracy"] for row in rows], color=color, lw=2, label=name)
    axes.set(xscale="log", xlabel="MB sent by all processes", ylabel="accuracy, %", ylim=(50, 100))
    axes.set_title("One model, one data set, four ways to train", loc="left", fontsize=11, color=style["text"])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, color=style["line"], lw=0.8)
    axes.legend(frameon=False, fontsize=9, labelcolor=style["text"], loc="lower right")


def draw_timeline(axes: Axes, run: RunFiles, style: dict[str, Any]) -> None:
    """Draw how each process spent its time around the loss of a worker."""
    (loss,) = [event for event in run.events if event["event"] == "worker lost"]
    begin_s, at_ms = loss["seconds"] - 0.4 * WINDOW_S, 400 * WINDOW_S
    for place, lane in enumerate(run.lanes):
        edges, kinds = lane.between(begin_s, begin_s + WINDOW_S)
        places = 1e3 * (edges - begin_s)
        lines = [[(low, -place), (high, -place)] for low, high in pairwise(places)]
        colors = [style[KINDS[kind]] for kind in kinds]
        axes.add_collection(LineCollection(lines, colors=colors, linewidths=13, capstyle="butt"))
        if lane.actor == loss["actor"]:
            axes.annotate(
                "killed and replaced", (at_ms, -place - 0.22), (at_ms + 12, -place - 0.56),
                color=style["lost"], fontsize=9, arrowprops={"arrowstyle": "-|>", "color": style["lost"]},
            )  # fmt: skip
    for kind in KINDS:
        axes.plot([], [], color=style[kind], lw=8, label=kind)
    axes.set_yticks(-np.arange(len(run.lanes)), [lane.actor for lane in run.lanes])
    axes.set(xlim=(0, 1e3 * WINDOW_S), ylim=(0.6 - len(run.lanes), 0.4))
    axes.set_xlabel("milliseconds of virtual time")
    axes.set_title("A worker is killed, and the run continues", loc="left", fontsize=11, color=style["text"])
    axes.legend(
        frameon=False, fontsize=9, labelcolor=style["text"], ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16)
    )


def draw(theme: str, compared: dict[str, RunFiles], timeline: RunFiles) -> None:
    """Write the picture for a light or a dark page."""
    style = STYLES[theme]
    figure = Figure(figsize=(10.4, 3.5), layout="constrained", facecolor=style["page"])
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    draw_curves(left, compared, style)
    draw_timeline(right, timeline, style)
    for axes in (left, right):
        axes.set_facecolor(style["page"])
        axes.tick_params(colors=style["soft"], labelsize=9, length=0)
        axes.xaxis.label.set_color(style["soft"])
        axes.yaxis.label.set_color(style["soft"])
        axes.spines[:].set_visible(False)
    with mpl.rc_context({"svg.hashsalt": "chimera"}):
        figure.savefig(IMAGES / f"readme-{theme}.svg", facecolor=style["page"], metadata={"Date": None})


def main() -> None:
    """Run the experiments and write both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        compared = {
            name: train(Path(folder) / str(number), **options)
            for number, (name, options) in enumerate(COMPARED.items())
        }
        faults = ["kill worker 1 at step 30"]
        timeline = train(Path(folder) / "faults", strategy="parameter-server", epochs=3, faults=faults)
    for theme in STYLES:
        draw(theme, compared, timeline)


if __name__ == "__main__":
    main()
