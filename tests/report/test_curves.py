"""Axes of a run's curves, and their reference lines."""

import numpy as np
import pytest

from chimera.report.curves import panels, y_range
from chimera.report.html import write_report
from chimera.report.plots import draw_run
from chimera.report.run_files import read_run
from chimera.report.unigram_baseline import unigram_baseline
from report.test_html import Page
from report.test_plots import overlapping


def changed(folder, old, new):
    path = folder / "experiment.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return folder


def local(folder):
    return changed(folder, 'name = "parameter-server"\n', 'name = "fed-buff"\nlocal_steps = 4\n')


def axes(folder):
    return [panel.x_label for panel in panels(read_run(folder))[0]]


def test_runs_with_local_steps_or_texts_have_an_axis_of_samples_per_worker(runs):
    assert axes(runs.make("plain"))[1] == "Rounds"
    assert axes(local(runs.make("local")))[1] == "Samples per worker"
    text = runs.make("text")
    (text / "vocabulary.txt").write_text("whale\nship\nsea\n", encoding="utf-8")
    assert axes(text)[1] == "Samples per worker"


@pytest.mark.parametrize("finished", [True, False])
def test_samples_per_worker_are_total_samples_divided_by_workers(runs, finished):
    folder = local(runs.make(workers=4, rounds=40, finished=finished))
    panel = panels(read_run(folder))[0][1]
    assert panel.x_max == 40 * 16
    np.testing.assert_allclose(panel.curves[0].x, np.arange(1, 41) * 16)


def test_a_loss_of_a_worker_is_marked_at_the_samples_read_by_then(runs):
    event = {"event": "worker lost", "seconds": 0.2, "round": 20, "actor": "worker 1"}
    panel = panels(read_run(local(runs.make(events=[event]))))[0][1]
    assert panel.marks == (20 * 16,)


@pytest.mark.parametrize(
    ("times", "unit", "largest"), [(1, "", 640), (1000, " (thousands)", 640), (10**7, " (millions)", 6400)]
)
def test_many_samples_are_counted_in_larger_units(runs, times, unit, largest):
    rows = [row | {"samples": row["samples"] * times} for row in runs.metric_rows(2, 40)]
    panel = panels(read_run(local(runs.make(metrics=rows))))[0][1]
    assert (panel.x_label, panel.x_max) == (f"Samples per worker{unit}", largest)
    assert overlapping(draw_run(runs.root / "a-run")) == []


def test_target_and_unigram_loss_are_lines_with_their_values(runs):
    folder = changed(
        runs.make(unigram_loss=0.4), "batch_size = 16\n", "batch_size = 16\ntarget = {loss = 0.1, accuracy = 0.9}\n"
    )
    loss, accuracy = panels(read_run(folder))
    for panel in loss:
        assert [(level.label, level.y) for level in panel.levels] == [("unigram model", 0.4), ("target", 0.1)]
    assert [(level.label, level.y) for level in accuracy[0].levels] == [("target", 0.9)]
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    for words in ("unigram model: 0.4", "target: 0.1", "target: 0.9", "loss vs. unigram model"):
        assert words in page.text
    assert page.attributes.count(("class", "unigram")) == 3 + 1  # in each panel, and in the legend
    figure = draw_run(folder)
    assert overlapping(figure) == []
    legends = [text.get_text() for part in figure.subfigs for legend in part.legends for text in legend.get_texts()]
    assert {"unigram model: 0.4", "target: 0.1", "target: 0.9"} <= set(legends)


@pytest.mark.parametrize(
    ("metrics", "compared"),
    [
        ({"loss": 8.0, "accuracy": 0.1}, ("loss", 0.5, "0.500 nats below")),
        ({"loss": 2.0, "cross-entropy": 9.0, "accuracy": 0.1}, ("cross-entropy", -0.5, "0.500 nats above")),
        ({"loss": 2.0}, None),  # of negative sampling, without a look at all words
        ({"loss": None, "accuracy": 0.1}, None),
        ({}, None),
    ],
)
def test_the_cross_entropy_of_a_word_is_compared_with_the_unigram_model(metrics, compared):
    found = unigram_baseline({"unigram_loss": 8.5, "metrics": metrics})
    assert (found and (found.metric, found.below, found.difference())) == compared
    assert unigram_baseline({"metrics": metrics}) is None


@pytest.mark.parametrize("target", ["-500.0", "500.0", "nan", '"low"'])
def test_a_reference_line_that_would_flatten_the_curves_is_not_drawn(runs, target):
    folder = changed(runs.make(), "batch_size = 16\n", f"batch_size = 16\ntarget = {{loss = {target}}}\n")
    assert [panel.levels for panel in panels(read_run(folder))[0]] == [()] * 3


def test_each_reference_line_is_within_its_panel(runs):
    for place, y in enumerate((0.001, 0.05, 1.0, 3.0)):
        folder = changed(runs.make(str(place)), "batch_size = 16\n", f"batch_size = 16\ntarget = {{loss = {y}}}\n")
        for panel in panels(read_run(folder))[0]:
            low, high = y_range(panel)
            assert all(low <= level.y <= high for level in panel.levels)
