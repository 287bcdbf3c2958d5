from __future__ import annotations

import re
import struct
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from chimera.core.errors import ConfigurationError
from chimera.report.curves import panels, thinned
from chimera.report.plots import draw_run, save_plot
from chimera.report.run_files import read_run


def labels(figure):
    return [axes.get_xlabel() for part in figure.subfigs for axes in part.axes]


def overlapping(figure):
    """Return pairs of overlapping texts, measured on the rendered figure."""
    figure.set_dpi(150)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    shown = [(text, text.get_window_extent(renderer)) for text in texts if axis_is_on(text)]
    return [
        (a.get_text(), b.get_text())
        for i, (a, at) in enumerate(shown)
        for b, bt in shown[i + 1 :]
        if at.x0 < bt.x1 - 1 and bt.x0 < at.x1 - 1 and at.y0 < bt.y1 - 1 and bt.y0 < at.y1 - 1
    ]


def axis_is_on(text):
    return text.axes is None or text.axes.axison


def nan_rows(runs):
    rows = runs.metric_rows(2, 30, evaluate_every=100)
    rows[-1]["train_loss"] = None
    return rows


@pytest.mark.parametrize("workers", [1, 4, 1000])
def test_the_plot_of_any_number_of_workers_has_units_and_no_overlap(runs, workers):
    figure = draw_run(runs.make(workers=workers, rounds=30, engine="local"))
    assert labels(figure)[:3] == ["Time (ms)", "Rounds", "Data moved, up and down (kB)"]
    assert overlapping(figure) == []
    titles = [axes.get_title(loc="left") for part in figure.subfigs for axes in part.axes]
    assert any("of 1,001 actors" in title for title in titles) == (workers == 1000)


def test_simulated_time_is_called_virtual(runs):
    times = [
        label for label in labels(draw_run(runs.make(engine="simulated"))) if re.search(r"time\b", label, re.IGNORECASE)
    ]
    assert times[0] == "Virtual time (ms)"
    assert [label for label in times if not label.startswith(("Virtual time", "Share of time"))] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda runs: {"metrics": runs.metric_rows(2, 1)},
        lambda runs: {"metrics": runs.metric_rows(2, 30, evaluate_every=100)},
        lambda runs: {"metrics": [{"round": 1, "seconds": 0.0}], "trace": []},
        lambda runs: {"metrics": nan_rows(runs)},
        lambda runs: {"metrics": [], "trace": []},
        lambda runs: {"trace": runs.trace_rows(1, 1)[:1]},
    ],
    ids=["one row", "no evaluation", "nothing measured", "ended in NaN", "nothing at all", "one call"],
)
def test_an_incomplete_run_is_drawn(runs, change):
    assert overlapping(draw_run(runs.make(finished=False, **change(runs)))) == []


def test_a_loss_that_is_not_finite_is_marked_at_its_position(runs):
    (row,) = [row for row in panels(read_run(runs.make(metrics=nan_rows(runs)))) if row[0].y_label.startswith("Loss")]
    assert [panel.not_finite for panel in row[:2]] == [pytest.approx(300), 30]  # milliseconds, rounds
    assert all(np.isfinite(curve.y).all() for panel in row for curve in panel.curves)


def test_bytes_are_an_axis_only_if_some_were_sent(runs):
    rows = [row | {"bytes_up": 0, "bytes_down": 0} for row in runs.metric_rows(1, 20)]
    assert [len(row) for row in panels(read_run(runs.make(metrics=rows)))] == [2, 2]


def test_metrics_of_different_scales_have_axes_of_their_own(runs):
    rows = [row | {"mse": 3000.0, "r2": 0.4, "recall": 0.9} for row in runs.metric_rows(2, 20)]
    run = read_run(runs.make(metrics=rows))
    drawn = [[curve.label for curve in row[0].curves] for row in panels(run)]
    assert drawn == [["training", "test set"], ["recall", "accuracy"], ["mse"], ["r2"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["$\\frac{1}$", "_hidden", "汉字 $x", "a" * 200])
def test_names_with_any_characters_are_drawn_as_text(runs, name):
    metrics = [row | {name: 0.5} for row in runs.metric_rows(2, 12)]
    trace = [*runs.trace_rows(2, 3)]
    assert overlapping(draw_run(runs.make(name.replace("\\", ""), metrics=metrics, trace=trace))) == []


def test_a_png_is_1500_pixels_wide_and_leaves_matplotlib_as_it_was(runs, tmp_path):
    before = dict(matplotlib.rcParams)
    path = save_plot(runs.make(), tmp_path / "run.png")
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", content[16:20]) == (1500,)
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not matplotlib.pyplot.get_fignums()


def test_a_folder_without_a_run_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="not a run folder"):
        draw_run(tmp_path)


def test_a_thinned_curve_keeps_its_mean_and_its_ends():
    x, y = np.arange(1000.0), np.sin(np.arange(1000.0))
    mean_x, mean_y = thinned(x, y, 100, average=True)
    assert (len(mean_x), mean_y.mean()) == (100, pytest.approx(y.mean()))
    level_x, level_y = thinned(x[:250], np.full(250, 3.0), 100, average=True)  # pieces of 2 and of 3 points
    assert (len(level_x), set(level_y.tolist())) == (100, {3.0})
    picked_x, picked_y = thinned(x, y, 100, average=False)
    assert (picked_x[0], picked_x[-1], picked_y[-1]) == (0, 999, y[-1])
