"""The file engine.toml, the page, the commands, and their errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from browser_kit import browser
from calibration_truth import experiment
from chimera.calibration.calibration import calibrate
from chimera.calibration.engine_file import read_engine, write_engine
from chimera.calibration.measured_run import read_measured
from chimera.calibration.page import page, write_page
from chimera.core.errors import ConfigurationError
from chimera.training.experiment.experiment import Experiment
from layout_kit import defects


@pytest.fixture
def engine_file(calibrated, tmp_path):
    return write_engine(calibrated, tmp_path / "engine.toml")


def test_the_file_returns_what_was_written(calibrated, engine_file):
    written, read = calibrated, read_engine(engine_file)
    assert read.values == written.values
    assert np.allclose(read.covariance, written.covariance, rtol=1e-12)
    assert read.codecs.keys() == {"int8"}
    assert vars(read.stragglers) == vars(written.stragglers)
    assert [source.name for source in read.sources] == ["batch-16", "batch-64"]


def test_the_table_is_one_of_the_simulated_engine(engine_file):
    from chimera.core.toml import read_toml

    engine = read_toml(engine_file.read_text())["engine"]
    one = Experiment({**experiment(rounds=3).tables, "engine": engine})
    assert one.trainer(out=engine_file.parent / "run").fit().cost.rounds == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("[calibration", "[other"), "no table [calibration]"),
        (lambda text: text.replace("processors = ", "processors = -"), "processors"),
        (lambda text: text.replace("covariance = [[", "covariance = [[inf, "), "covariance"),
        (lambda text: text.replace("parameters.latency_s", "parameters.other"), "latency_s"),
        (lambda text: text.replace("straggler_spread = 0", "straggler_spread = -1"), "straggler_spread"),
        (lambda text: text + "[", "not a TOML file"),
        (lambda text: text + "# " + "x" * (1 << 20), "MiB"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(engine_file, change: Callable[[str], str], message):
    engine_file.write_text(change(engine_file.read_text().replace("processors = 0", "processors = 1")))
    with pytest.raises(ConfigurationError, match=message.replace("[", r"\[")):
        read_engine(engine_file)


def test_runs_that_cannot_be_used_are_errors(disguised, virtual_runs):
    with pytest.raises(ConfigurationError, match="engine 'simulated'"):
        read_measured(virtual_runs[0])
    folder = disguised()
    read_measured(folder)
    (folder / "trace.jsonl").rename(folder / "trace")
    with pytest.raises(ConfigurationError, match="no trace"):
        read_measured(folder)
    rows = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    without = [{key: value for key, value in row.items() if key != "samples"} for row in rows]
    (folder / "trace.jsonl").write_text("\n".join(map(json.dumps, without)))
    with pytest.raises(ConfigurationError, match=r"the run '.*' has a trace without samples: times per sample"):
        read_measured(folder)
    summary = folder / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "privacy": {"clip": 1.0}}))
    with pytest.raises(ConfigurationError, match=r"the run '.*' is private, so its trace has no samples: times per"):
        read_measured(folder)
    summary.unlink()
    (folder / "experiment.toml").write_text('[engine]\nname = "local"\n')
    with pytest.raises(ConfigurationError, match="did not finish"):
        read_measured(folder)
    (folder / "summary.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"is damaged: summary\.json could not be read"):
        read_measured(folder)


def test_truth_values_are_no_counts_of_a_run(disguised, tmp_path):
    folder = disguised()
    (folder / "environment.json").write_text('{"processors": true}')
    experiment = folder / "experiment.toml"
    experiment.write_text(re.sub(r"(?m)^batch_size = .*", "batch_size = true", experiment.read_text()))
    run = read_measured(folder)
    assert (run.processors, run.batch_size) == (0, 0)
    write_engine(calibrate([folder]), tmp_path / "engine.toml")
    read_engine(tmp_path / "engine.toml")


def test_a_resumed_run_has_one_clock(disguised):
    folder = disguised()
    once = read_measured(folder).seconds_of_rounds()[0]
    trace = folder / "trace.jsonl"
    trace.write_text(2 * trace.read_text())  # the clock of the second half starts again
    twice = read_measured(folder).seconds_of_rounds()[0]
    assert twice.min() == pytest.approx(once.min())
    assert len(twice) >= 2 * len(once)


def test_hostile_rows_do_not_break_a_calibration(disguised):
    folder = disguised()
    with (folder / "trace.jsonl").open("a") as file:
        file.write('{"actor":"worker 0","rank":0,"call":"gradient","start_s":1e308,"end_s":1e308,"samples":16}\n')
        file.write('{"actor":"<b>","rank":0,"call":"<i>","start_s":2,"end_s":1}\n"\n')
    assert "<b>" not in page(calibrate([folder]))


def test_the_commands_write_the_files_and_print_predictions(disguised, invoke, tmp_path):
    runs = [disguised(0), disguised(1)]
    target = tmp_path / "found.toml"
    done = invoke("calibrate", *runs, "-o", target)
    assert done.exit_code == 0, done.output
    assert "seconds_per_sample" in done.stdout
    assert "residual" in target.with_suffix(".html").read_text(encoding="utf-8")
    file = tmp_path / "experiment.toml"
    file.write_text(experiment(rounds=20).to_toml(), encoding="utf-8")
    options = "--engine-from", target, "--workers", 3, "--draws", 2, "--rounds", 20, "--json"
    done = invoke("predict", file, *options, "--vary", "codec=identity,top-k:ratio=0.1")
    assert done.exit_code == 0, done.output
    (plain, packed) = json.loads(done.stdout)["predictions"]
    assert plain["workers"] == 3
    assert plain["seconds"]["low"] <= plain["seconds"]["median"] <= plain["seconds"]["high"]
    assert packed["bytes_up"] < plain["bytes_up"]
    assert any("top-k" in note for note in packed["notes"])


def test_mistakes_on_the_command_line_are_one_line(virtual_runs, invoke, tmp_path):
    mistakes = [
        ("calibrate", virtual_runs[0], "-o", tmp_path / "engine.toml"),
        ("calibrate", tmp_path / "absent"),
        ("calibrate", virtual_runs[0], "-o", tmp_path / "engine"),
        ("predict", tmp_path / "x.toml", "--engine-from", tmp_path / "absent.toml"),
    ]
    for mistake in mistakes:
        done = invoke(*mistake)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output


@pytest.mark.long
@pytest.mark.takes("it starts a browser")
def test_the_page_is_legible_in_wide_and_narrow_windows(calibrated, tmp_path):
    with browser(tmp_path / "profile") as tab:
        assert defects(tab, write_page(calibrated, tmp_path / "engine.html")) == []
