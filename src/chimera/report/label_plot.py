"""The picture of the workers' data: a bar of labels for each worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chimera.core.worker_counts import WorkerCounts
from chimera.report.plots import drawable, styled, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_WORKERS = 60
_BAR_IN = 0.22
_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"),
    *("#D55E00", "#F0E442", "#55606B", "#882255", "#999933"),
)
_DARK_COLOURS = (0, 2, 5, 7, 8)
_REST = "#D5D9DE"
_MIN_SHARE = 0.04  # of the width, for a segment that shows its label


def save_label_plot(counts: WorkerCounts, path: str | os.PathLike[str], title: str) -> Path:
    """Write the picture to ``path``, in the format of its suffix, and return the path. At most 60 workers are drawn.

    Raises
    ------
    ConfigurationError : ``path`` has an unknown ending or cannot be written.
    """
    return write_figure(lambda: _draw(counts, title), path)


def _draw(counts: WorkerCounts, title: str) -> Figure:
    from matplotlib.figure import Figure

    shown = counts.workers[:_MAX_WORKERS]
    names = counts.columns or ["samples"]
    held = np.array([each.counts or (each.samples,) for each in shown], np.int64)
    with styled():
        figure = Figure(figsize=(10.0, 1.4 + _BAR_IN * len(shown)), layout="constrained")
        axes = figure.subplots()
        left = np.zeros(len(shown), np.int64)
        for place, name in enumerate(names):
            rest = place >= max(len(counts.labels), 1)
            bars = axes.barh(
                np.arange(len(shown)),
                held[:, place],
                left=left,
                height=0.8,
                color=_REST if rest else _COLOURS[place % len(_COLOURS)],
                hatch="///" if place >= len(_COLOURS) and not rest else None,
                edgecolor="white",
                linewidth=0.6,
                label=drawable(name),
            )
            left += held[:, place]
            wide = held[:, place] >= _MIN_SHARE * held.sum(axis=1).max()
            inside = [drawable(name, 8) if counts.columns and each else "" for each in wide.tolist()]
            dark = place % len(_COLOURS) in _DARK_COLOURS and not rest
            axes.bar_label(bars, inside, label_type="center", color="white" if dark else "#111111", fontsize=8)
        axes.set_yticks(np.arange(len(shown)), [drawable(each.worker) for each in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel("Samples")
        cut = f", the first {len(shown)} of {len(counts.workers):,} workers" if len(shown) < len(counts.workers) else ""
        skew = "" if counts.skew is None else f" · label skew {counts.skew:.2f}"
        axes.set_title(drawable(f"{title}{cut}{skew}", 110), loc="left")
        if counts.columns:
            figure.legend(loc="outside right upper", handlelength=1.2)
    return figure
