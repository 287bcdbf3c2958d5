"""Draw docs/architecture.png: the layers of the packages, from the contract in pyproject.toml, and the processes of a run.

python docs/diagrams/layers.py
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

DOCS = Path(__file__).parents[1]
FAMILY, DATA, CONTROL = "#dbe7f3", "#2b6cb0", "#8a8a8a"
PROCESSES = {
    "driver\nstrategy, trainer": (0.0, 1.6),
    "worker 0\nmodel, data shard": (-2.2, 0.0),
    "worker 1\nmodel, data shard": (0.0, 0.0),
    "worker 2\nmodel, data shard": (2.2, 0.0),
    "server 0\nweights [0, P/2)": (-1.1, -1.6),
    "server 1\nweights [P/2, P)": (1.1, -1.6),
}


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest first."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def box(axes: Any, x: float, y: float, width: float, height: float, text: str) -> None:
    """Draw a box around a text; ``x`` and ``y`` are its center."""
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle="round,pad=0.02", facecolor=FAMILY, edgecolor="#45617c")
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5)


def draw_layers(axes: Any) -> None:
    """Draw each layer as a row of packages."""
    found = layers()
    for row, names in enumerate(found):
        for place, name in enumerate(names):
            box(axes, (place + 0.5) * 7 / len(names), -row, 7 / len(names) - 0.12, 0.62, name)
        if row:
            axes.annotate("", (3.5, -row + 0.34), (3.5, -row + 0.66), arrowprops={"arrowstyle": "->", "color": CONTROL})
    axes.set(xlim=(-0.1, 7.1), ylim=(-len(found) + 0.5, 0.6), title="Layers: imports go down only")


def draw_processes(axes: Any) -> None:
    """Draw the processes of a run with parameter servers, its calls and its data."""
    for text, (x, y) in PROCESSES.items():
        box(axes, x, y, 1.75, 0.62, text)
    driver, *actors = PROCESSES.values()
    for x, y in actors[:3]:
        axes.annotate(
            "",
            (x, y + 0.36),
            (driver[0] + x * 0.3, driver[1] - 0.36),
            arrowprops={"arrowstyle": "->", "color": CONTROL, "ls": "--"},
        )
        for to_x, to_y in actors[3:]:
            axes.annotate("", (to_x, to_y + 0.36), (x, y - 0.36), arrowprops={"arrowstyle": "<->", "color": DATA})
    axes.plot([], [], "--", color=CONTROL, label="calls and refs")
    axes.plot([], [], color=DATA, label="weights and gradients")
    axes.legend(loc="upper right", frameon=False, fontsize=8.5)
    axes.set(xlim=(-3.2, 3.2), ylim=(-2.2, 2.2), title="Processes of a run: data does not pass through the driver")


def main() -> None:
    """Write the picture."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6), layout="constrained")
    draw_layers(left)
    draw_processes(right)
    for axes in (left, right):
        axes.set_axis_off()
    figure.savefig(DOCS / "architecture.png", dpi=110)


if __name__ == "__main__":
    main()
