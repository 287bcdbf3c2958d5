from __future__ import annotations

import stat
from dataclasses import asdict

import pytest

from chimera.core.errors import ConfigurationError
from chimera.report.run_files import COUNTERS, read_run, replace_file
from chimera.training.progress.budget import Counters


def test_a_complete_run_is_read_without_notes(runs):
    run = read_run(runs.make(workers=3, rounds=25, engine="simulated"))
    assert run.finished
    assert run.is_virtual
    assert run.notes == ()
    assert len(run.metrics) == 25
    assert [lane.actor for lane in run.lanes] == ["worker 0", "worker 1", "worker 2", "server 0"]
    assert run.figures()["samples_per_second"] == 3210.0


@pytest.mark.parametrize("name", ["metrics.jsonl", "trace.jsonl"])
def test_a_file_truncated_anywhere_gives_the_rows_before_that(runs, name):
    """Truncation at any byte of the last two lines raises nothing and loses no complete row."""
    whole = runs.make(rounds=12, finished=False)
    content = (whole / name).read_bytes()
    lines = content.splitlines(keepends=True)
    for kept in range(len(content) - len(lines[-1]) - len(lines[-2]), len(content)):
        (whole / name).write_bytes(content[:kept])
        run = read_run(whole)
        complete = content[:kept].count(b"\n") + (content[kept : kept + 1] == b"\n")
        read = len(run.metrics) if name == "metrics.jsonl" else sum(len(lane.starts) for lane in run.lanes)
        assert read == complete
        assert bool(run.notes) == (content[kept - 1 : kept] != b"\n" and content[kept : kept + 1] != b"\n")


def test_counters_of_the_trainer_are_not_metrics():
    assert {*asdict(Counters()), "round", "epoch"} - {"rounds"} == set(COUNTERS)


def test_a_broken_line_in_the_middle_is_skipped_alone(runs):
    folder = runs.make(rounds=12)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines[:5], lines[5][:20] + b"\n", *lines[6:]]))
    run = read_run(folder)
    assert [row["round"] for row in run.metrics] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    assert run.notes == ("metrics.jsonl: 1 line could not be read.",)


def test_a_run_without_a_summary_has_results_so_far(runs):
    lost = {"event": "worker lost", "seconds": 0.1, "round": 10, "actor": "worker 1"}
    run = read_run(runs.make(workers=2, rounds=27, finished=False, events=[lost]))
    assert not run.finished
    figures = run.figures()
    assert figures["rounds"] == 27
    assert figures["lost_workers"] == 1
    assert figures["samples"] == 27 * 32
    assert figures["samples_per_second"] == pytest.approx(27 * 32 / 0.27)
    assert figures["metrics"]["accuracy"] == pytest.approx(1 - 0.9 / 20)  # the last evaluation, not the last row


def test_a_literal_nan_is_a_value_and_not_a_broken_line(runs):
    rows = runs.metric_rows(2, 5)
    rows[-1]["train_loss"] = float("nan")
    run = read_run(runs.make(metrics=rows))
    assert len(run.metrics) == 5
    assert run.notes == ()


@pytest.mark.parametrize("name", ["summary.json", "environment.json", "experiment.toml"])
def test_an_incomplete_settings_file_adds_a_note(runs, name):
    folder = runs.make()
    (folder / name).write_text((folder / name).read_text()[:25])
    assert read_run(folder).notes == (f"{name} could not be read.",)


def test_a_folder_without_a_run_is_rejected_in_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no run folder"):
        read_run(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match=r"not a run folder: it has neither experiment\.toml") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_is_replaced_atomically_with_owner_permissions_and_without_leftovers(tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="cannot write"):
        replace_file(tmp_path / "absent" / "report.html", b"")
